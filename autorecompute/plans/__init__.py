"""Plans, configs and the space they span. Knows nothing of torch, processes or backends."""

from __future__ import annotations

from autorecompute.plans.plan import (
    Activation,
    Alternative,
    Choice,
    Cluster,
    Config,
    Offer,
    Plan,
    parse_choices,
    saving_of,
)
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
