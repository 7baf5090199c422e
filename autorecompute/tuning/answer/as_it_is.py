"""The script as the user has it: where the tool wraps the model, the plain script is measured beside the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.result import AsItIs
from autorecompute.studies.writing import saying_what_fails
from autorecompute.tuning.answer.baseline_batch import figures_of, fresh_runs
from autorecompute.tuning.answer.paired_comparison import PAIR, PAIRS, PairedComparison
from autorecompute.tuning.budget import Task
from autorecompute.verdict import LEAST_RATIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.figures import Comparison
    from autorecompute.result import Best
    from autorecompute.trials import Bench
    from autorecompute.tuning.context import TuningContext


@dataclass(frozen=True, slots=True)
class PlainComparison:
    """What came of measuring the script as it is.

    Attributes:
        as_it_is: The figures; ``None`` where the tool wraps nothing, or without time.
        is_complete: Whether there was time for all that it takes.
    """

    as_it_is: AsItIs | None = None
    is_complete: bool = True


def compare_with_plain(context: TuningContext, best: Best | None, *, is_just_confirmed: bool) -> PlainComparison:
    """Measures the script without the wrapping, in fresh processes at the target batch, and compares where it fits.

    Args:
        context: What the tuning works with.
        best: The confirmed config; ``None`` where none fits.
        is_just_confirmed: Whether its fresh process was the last thing that ran.

    Raises:
        SetupError: the folder of the processes' output cannot be made.
    """
    if not context.job.wrap:
        return PlainComparison()
    if not context.budget.allows(Task.CONFIRMATION):
        return PlainComparison(is_complete=False)
    context.note("measuring the script as it is, without --wrap")
    logs = context.logs / "as_it_is"
    with saying_what_fails(logs):
        logs.mkdir(parents=True, exist_ok=True)
    plain = context.bench.unwrapped(logs)
    measurement = plain.watch({}, context.settings.effort, context.settings.batch).under(context.problem.limit_bytes)
    if measurement.outcome is not Outcome.OK:
        why = f": {measurement.message}" if measurement.message else ""
        context.note(f"PyTorch, as it is: {measurement.outcome}{why}")
    figures = replace(figures_of(measurement), batch=measurement.batch or context.problem.batch)
    speed = measurement.samples_per_second
    if best is None or measurement.outcome is not Outcome.OK or not speed:
        return PlainComparison(AsItIs(figures=figures))
    comparison = _compare(context, best, plain, best.samples_per_second / speed, is_just_confirmed=is_just_confirmed)
    is_complete = comparison.is_clear or comparison.pairs >= PAIRS or context.budget.allows(*PAIR)
    return PlainComparison(AsItIs(figures=figures, comparison=comparison), is_complete=is_complete)


def _compare(context: TuningContext, best: Best, plain: Bench, ratio: float, *, is_just_confirmed: bool) -> Comparison:
    comparison = PairedComparison(
        fresh_runs(context, context.emit(best.config), best.batch),
        _plain_runs(context, plain, best.batch),
        least_ratio=LEAST_RATIO,
        has_time=lambda: context.budget.allows(*PAIR),
    )
    return comparison.run(ratio, are_neighbours=is_just_confirmed)


def _plain_runs(context: TuningContext, plain: Bench, batch: int) -> Callable[[], float | None]:
    def run() -> float | None:
        context.note(f"comparing in fresh processes: batch {batch} as the script is")
        measurement = plain.watch({}, context.settings.effort, batch)
        return measurement.samples_per_second if measurement.outcome is Outcome.OK else None

    return run
