"""A knob that saves memory may let a config fit that recomputes less: found among the trials of the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.tuning.knobs.side_by_side import MARGIN, highest_peak

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.knobs import KnobComparison
    from autorecompute.measurement import Trial
    from autorecompute.plans import Config


def find_cheaper(trials: Sequence[Trial], base: Config, comparison: KnobComparison, limit_bytes: int) -> Trial | None:
    """The fastest trial that did not fit, is faster than the base's and should fit with what the knob saves.

    Args:
        trials: All that the search measured.
        base: What the knob was turned on.
        comparison: What it did there.
        limit_bytes: What a whole process may reach.
    """
    own = next((trial for trial in trials if trial.config == base), None)
    without, with_knob = (highest_peak(side) for side in zip(*comparison.pairs, strict=True))
    if own is None or comparison.outcome is not Outcome.OK or without is None or with_knob is None:
        return None
    peak_bytes, speed = own.measurement.peak_bytes, own.relative_throughput
    if peak_bytes is None or speed is None or with_knob >= without:
        return None
    # What a whole process needs beyond the steps of a trial, under the knob.
    beyond_bytes = with_knob - peak_bytes
    faster = [
        trial
        for trial in trials
        if trial.measurement.outcome is Outcome.OVER_LIMIT
        and trial.measurement.peak_bytes is not None
        and trial.measurement.peak_bytes + beyond_bytes <= limit_bytes
        and (trial.relative_throughput or 0) > speed * (1 + MARGIN)
    ]
    return max(faster, key=lambda trial: trial.relative_throughput or 0, default=None)
