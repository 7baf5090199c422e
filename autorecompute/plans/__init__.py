"""What can be recomputed: plans, configs and the space they span. Knows nothing of torch, processes or backends."""

from __future__ import annotations

from autorecompute.plans.config import Config
from autorecompute.plans.offer import Offer
from autorecompute.plans.plan import Choice, Plan, parse_choices
from autorecompute.plans.saved import Activation, Alternative, Cluster, saving_of
from autorecompute.plans.space import Space

__all__ = [
    "Activation",
    "Alternative",
    "Choice",
    "Cluster",
    "Config",
    "Offer",
    "Plan",
    "Space",
    "parse_choices",
    "saving_of",
]
