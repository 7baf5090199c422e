"""Turns the knobs of a study that has an answer, where the user asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.trials.lock import hold_device
from autorecompute.trials.signals import OutOfTime, ignoring_interrupts
from autorecompute.tuning.knobs.outer_search import KnobSearch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Detection, Trial
    from autorecompute.result import Result
    from autorecompute.studies import Problem
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace


def turn_knobs(  # noqa: PLR0913  (what a search over knobs needs, and where its answer so far goes)
    place: Workplace,
    budget: Budget,
    detection: Detection,
    problem: Problem,
    trials: Sequence[Trial],
    *,
    result: Result,
    keep: Callable[[Result], None],
) -> Result:
    """The answer with the knobs that were kept; as it is where none is wanted, or all were turned before.

    Args:
        place: What it works with.
        budget: The time there is.
        detection: What the job is.
        problem: What has to be solved.
        trials: What the search measured.
        result: The answer without knobs, or with some of them.
        keep: Is given the answer that an interruption leaves.

    Raises:
        KeyboardInterrupt: the user stopped it.
        SetupError: the study cannot be written.
    """
    was_turned = result.knobs and not any(knob.is_open for knob in result.knobs)
    if not place.settings.turns_knobs or result.best is None or was_turned:
        return result
    knobs = KnobSearch(place, budget, detection, problem, trials)
    if budget.left_seconds <= 0:
        return knobs.so_far(result)
    try:
        with hold_device(detection.device, f"study {place.folder.path}", place.progress.note):
            return knobs.run(result)
    except KeyboardInterrupt as stop:
        with ignoring_interrupts():
            so_far = knobs.so_far(result)
            keep(so_far)
        if isinstance(stop, OutOfTime):
            return so_far
        raise
