"""What the user asked of a tuning."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.trials.bench import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """What the user asked for.

    Attributes:
        limit_bytes: What the peak may reach; ``None`` takes what the device has to give (``tuning/limit.py``).
        max_trials: How many configs may be measured over the study's life.
        timeout_seconds: How long this session may search; ``None`` for no end.
        effort: How long each config is measured.
        batch: The target batch; ``None`` takes what the script gives.
    """

    limit_bytes: int | None
    max_trials: int
    timeout_seconds: float | None
    effort: Effort = field(default_factory=Effort)
    batch: int | None = None
