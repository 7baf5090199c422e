"""What can be recomputed: plans, configs and the space they span. Knows nothing of torch, ORT or processes."""

from __future__ import annotations

from autorecompute.plans.config import Config, Level
from autorecompute.plans.dimensions import Axis, canonical_names
from autorecompute.plans.insight import Activation, Choice, Insight, merge_alike, saving_of
from autorecompute.plans.plan import Option, Plan, Row
from autorecompute.plans.request import Request
from autorecompute.plans.sharing import find_sharing
from autorecompute.plans.space import Space

__all__ = [
    "Activation",
    "Axis",
    "Choice",
    "Config",
    "Insight",
    "Level",
    "Option",
    "Plan",
    "Request",
    "Row",
    "Space",
    "canonical_names",
    "find_sharing",
    "merge_alike",
    "saving_of",
]
