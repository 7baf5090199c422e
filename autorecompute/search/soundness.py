"""Which plans work at all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Space


def sound_space(space: Space, trials: Sequence[Trial]) -> Space:
    """The space without the plans that failed alone, and not for want of memory: they would fail in any company."""
    outcomes = {trial.config: trial.measurement.outcome for trial in trials}
    failed = {c for c, outcome in outcomes.items() if not outcome.is_measured and not outcome.is_about_memory}
    return replace(space, plans=tuple(plan for plan in space.plans if Config.of([plan]) not in failed))
