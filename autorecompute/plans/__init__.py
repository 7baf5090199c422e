"""What can be recomputed: plans, configs and the space they span. Knows nothing of torch, ORT or processes."""

from __future__ import annotations

from autorecompute.plans.config import Config, Level
from autorecompute.plans.plan import Option, Plan, Row
from autorecompute.plans.space import Space

__all__ = ["Config", "Level", "Option", "Plan", "Row", "Space"]
