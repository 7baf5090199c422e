"""Finds the largest batch that fits without recompute, and compares the answer with it in pairs."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.errors import ScriptError, WrongBatchError
from autorecompute.figures import LEAST_RATIO, Comparison, Figures, Verdict, judge
from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.trials.bench import drifts, takes_turns
from autorecompute.tuning.budget import Task
from autorecompute.tuning.intervals import student_quantile
from autorecompute.tuning.race import CARD_ROUND_EFFORT, ROUND_EFFORT, round_steps
from autorecompute.units import format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.result import Best, Result
    from autorecompute.studies.records import BatchRecord
    from autorecompute.tuning.context import TuningContext, TuningSettings
    from autorecompute.tuning.race import Finalist


ATTEMPTS = 3

CLEARLY_LARGER = 1.1
"""After a batch that fits, only one that is larger by this factor is worth another process."""


PAIRS_IN_PLACE = 12
"""A pair within one process takes some steps only, and so few of them scatter more than whole processes."""

PAIR_IN_PLACE = (Task.ROUND, Task.ROUND, Task.CHECK, Task.CONFIRMATION)
"""Tasks for which there has to be time: such a pair, and the answer after it."""

FORECAST_SHARE = 0.9
"""Of the limit, what is forecast may take so much: a card's allocator reserves a tenth more."""


def measure_rival_batch(  # noqa: PLR0913  (what its batch is guessed from, and whether there is time)
    measure: Callable[[int], Measurement],
    target: int,
    limit_bytes: int,
    *,
    resting_bytes: int,
    peak_bytes: int | None,
    forecast_batch: int | None = None,
    has_time: Callable[[], bool] = lambda: True,
) -> tuple[Measurement | None, bool, bool]:
    """Look for the largest batch that fits without recompute.

    Activations grow in proportion to the batch, so the first guess is near; each further one learns from the last.
    Where the baseline ran out of memory the first one is what is forecast to fit, or a mere half.

    Args:
        measure: Measures a batch without recompute.
        target: The target batch, which does not fit without recompute.
        limit_bytes: The memory limit.
        resting_bytes: Memory without any activation.
        peak_bytes: Peak at the target batch without recompute; ``None`` where it ran out of memory.
        forecast_batch: The largest batch that should fit without recompute; ``None`` where nothing tells.
        has_time: Tells whether there is time to measure another one.

    Returns:
        The fresh process of the largest, if one was found; true if no smaller batch fits; and true if that process was
        the first of the search, with none between it and what ran before.
    """
    # A single sample is estimated away only by a model that fills the limit without any.
    smallest = 1 if resting_bytes < limit_bytes else 0
    blind = target // 2 if forecast_batch is None else forecast_batch
    guess = blind if peak_bytes is None else _largest(target, limit_bytes, resting_bytes, peak_bytes)
    # A baseline whose steps fit, and whose whole process did not, lets the estimate reach the target itself.
    guess = min(max(guess, smallest), target - 1)
    found, least, too_large, was_memory, is_first = None, 1.0, target, True, False
    for attempt in range(ATTEMPTS):
        if guess < least or not has_time():
            break
        measurement = measure(guess)
        peak, outcome = measurement.peak_bytes, measurement.under(limit_bytes).outcome
        if outcome is Outcome.OK:
            found, least, is_first = measurement, guess * CLEARLY_LARGER, attempt == 0
        else:
            too_large, was_memory = guess, was_memory and outcome.is_about_memory
        fitting = guess // 2 if peak is None else _largest(guess, limit_bytes, resting_bytes, peak)
        guess = min(max(fitting, smallest), too_large - 1)
    return found, found is None and guess < 1 and was_memory, is_first


def _largest(batch: int, limit_bytes: int, resting_bytes: int, peak_bytes: int) -> int:
    bytes_per_sample = max(peak_bytes - resting_bytes, 1) / batch
    return int((limit_bytes - resting_bytes) / bytes_per_sample)


@dataclass(frozen=True, slots=True)
class Rival:
    """The largest batch that fits without recompute, and how the winner compares with it.

    Attributes:
        none_fits: True if no smaller batch is known to fit without recompute.
        is_complete: True if there was time for all that it takes.
    """

    figures: Figures | None = None
    comparison: Comparison | None = None
    none_fits: bool = False
    is_complete: bool = True


def compare_with_rival_batch(
    context: TuningContext, best: Best, baseline: Trial | None, *, is_just_confirmed: bool
) -> Rival:
    """Measure the largest batch that fits without recompute, unless it is known, and compare as time allows.

    The winner is just confirmed if its fresh process was the last thing that ran.
    """
    known, budget = context.settings.rival_batch, context.budget
    if known is not None:
        if known.batch is None:
            return Rival(none_fits=True)
        # A tuning over several batches knows it, and compares with it once for all batches in the end.
        speed = known.samples_per_second
        apart = Comparison(ratio=best.samples_per_second / speed, pairs=0, is_clear=False) if speed else None
        return Rival(known, apart)

    def has_time() -> bool:
        return budget.allows(Task.CONFIRMATION)

    if has_time():
        context.note("measuring the largest batch that fits without recompute")
    found, none_fits, is_first = _search(
        context, lambda batch: context.watch({}, batch), context.problem.limit_bytes, baseline, has_time
    )
    if found is None or not found.samples_per_second:
        return Rival(none_fits=none_fits, is_complete=none_fits or has_time())
    comparison = compare_in_pairs(
        fresh_runs(context, context.emit(best.config), best.batch),
        fresh_runs(context, {}, found.batch),
        best.samples_per_second / found.samples_per_second,
        least_ratio=LEAST_RATIO,
        are_neighbours=is_just_confirmed and is_first,
        has_time=lambda: budget.allows(*PAIR),
    )
    is_complete = has_enough_pairs(comparison, has_time=budget.allows(*PAIR))
    return Rival(figures_of(found), comparison, is_complete=is_complete)


def _search(
    context: TuningContext,
    measure: Callable[[int], Measurement],
    limit_bytes: int,
    baseline: Trial | None,
    has_time: Callable[[], bool],
) -> tuple[Measurement | None, bool, bool]:
    memory, room_bytes = context.memory, round(FORECAST_SHARE * limit_bytes)
    return measure_rival_batch(
        measure,
        context.problem.batch,
        limit_bytes,
        resting_bytes=context.rest_bytes,
        peak_bytes=baseline.measurement.peak_bytes if baseline else None,
        forecast_batch=memory.largest_batch(Config(), context.dims, room_bytes) if memory is not None else None,
        has_time=has_time,
    )


def compare_in_place(
    context: TuningContext, finalist: Finalist, baseline: Trial | None, limit_bytes: int
) -> Rival | None:
    """Compare a finalist with the largest batch that fits without recompute in one process, in turns.

    ``None`` where the script's batch cannot be changed while it runs, a swap takes time, nothing smaller was found to
    fit, or there is no time.
    """
    bench, budget, config = context.bench, context.budget, finalist.trial.config
    starts = [] if bench.is_live else [Task.START]
    if not (budget.allows(*starts, *PAIR_IN_PLACE) and takes_turns(bench)) or len(bench.detect_ranks()) > 1:
        return None
    context.note("comparing with the largest batch that fits without recompute, in the same process")
    begun = bench.starts

    def may_go_on() -> bool:
        # A process that ended is not started again for this: the comparison in fresh ones needs none.
        return bench.starts == begun and bench.is_live and budget.allows(*PAIR_IN_PLACE)

    steps = round_steps(bench)
    first = replace(ROUND_EFFORT if drifts(bench) else CARD_ROUND_EFFORT, steps=steps)

    def measure(batch: int) -> Measurement:
        return bench.measure(Config(), replace(first, batch=batch))

    found, _, _ = _search(context, measure, limit_bytes, baseline, may_go_on)
    if found is None or not found.samples_per_second or not may_go_on():
        return None

    def run(config: Config, batch: int | None = None) -> float | None:
        measurement = bench.measure(config, replace(ROUND_EFFORT, warmup=0, steps=steps, batch=batch))
        return measurement.samples_per_second if measurement.outcome is Outcome.OK else None

    rate = run(config)
    if not rate or not may_go_on():
        return None
    comparison = compare_in_pairs(
        lambda: run(config),
        lambda: run(Config(), found.batch),
        rate / found.samples_per_second,
        least_ratio=LEAST_RATIO,
        are_neighbours=False,
        has_time=may_go_on,
        most=PAIRS_IN_PLACE,
    )
    if not comparison.pairs:
        return None
    if bench.is_live:
        run(config)  # the gradients are compared at the target batch
    return Rival(figures_of(found), comparison)


def confirm_rival(context: TuningContext, rival: Rival) -> Rival | None:
    """Return a comparison within one process; where recompute does not pay, with the figures of a fresh one.

    ``None`` where that does not hold the limit: a smaller batch is the rival then.
    """
    if judge(rival.comparison) is not Verdict.DOES_NOT_PAY or rival.figures is None:
        return rival
    if not context.budget.allows(Task.CONFIRMATION):
        return replace(rival, is_complete=False)
    context.note(f"confirming in a fresh process: batch {rival.figures.batch} without recompute")
    measurement = context.watch({}, rival.figures.batch)
    is_within = measurement.under(context.problem.limit_bytes).outcome is Outcome.OK
    return replace(rival, figures=figures_of(measurement)) if is_within else None


def fresh_runs(context: TuningContext, environment: dict[str, str], batch: int | None) -> Callable[[], float | None]:
    """Run a batch in a fresh process under this environment; give its samples/s, or ``None`` where it failed."""

    def run() -> float | None:
        way = "with" if environment else "without"
        context.note(f"comparing in fresh processes: batch {batch} {way} recompute")
        measurement = context.watch(environment, batch)
        return measurement.samples_per_second if measurement.outcome is Outcome.OK else None

    return run


def needs_rival_batch(best: Best | None, settings: TuningSettings) -> bool:
    """Tell whether this winner has to be compared with a smaller batch."""
    return best is not None and not best.config.is_none and settings.batch is not None


def recall_rival(earlier: Result | None, best: Best, rival: Rival) -> Rival:
    """Return an earlier session's comparison of the same winner and rival, without time to compare now."""
    if rival.is_complete or earlier is None or earlier.best is None:
        return rival
    if not (earlier.compared and earlier.best.confirmed and earlier.best.config == best.config):
        return rival
    known = earlier.rival
    if rival.figures is not None and (known is None or known.batch != rival.figures.batch):
        return rival
    return Rival(known, earlier.comparison, none_fits=known is None and earlier.verdict is Verdict.RECOMPUTE_PAYS)


def judge_recompute(best: Best | None, rival: Rival) -> Verdict:
    """Judge recompute by the winner and the largest batch without recompute."""
    if best is None:
        return Verdict.NO_FIT
    if best.config.is_none:
        return Verdict.NOT_NEEDED
    return Verdict.RECOMPUTE_PAYS if rival.none_fits else judge(rival.comparison)


def figures_of(measurement: Measurement) -> Figures:
    """Return the figures of a fresh process."""
    return Figures(
        outcome=measurement.outcome,
        samples_per_second=measurement.samples_per_second,
        peak_bytes=measurement.peak_bytes,
        batch=measurement.batch,
    )


def measure_without(context: TuningContext, batch: int, limit_bytes: int, *, is_due: bool) -> Figures:
    """Return the figures of the batch, told to whoever watches.

    Raises:
        ScriptError: a batch that is due fails for another reason than memory.
    """
    context.note(f"batch {batch}: measuring without recompute")
    with context.budget.timing(Task.CONFIRMATION):
        measurement = context.watch({}, batch)
        if measurement.outcome is Outcome.LOST:
            measurement = context.watch({}, batch)
    measurement = measurement.under(limit_bytes)
    outcome = measurement.outcome
    if outcome is Outcome.WRONG_BATCH and context.job.global_batch is not None:
        raise WrongBatchError(measurement.message)
    if not outcome.is_measured and not outcome.is_about_memory and is_due:
        raise ScriptError(
            f"The script fails at batch {batch} without any recompute. {measurement.message}\n"
            f"Outcome: {outcome}. Its output: {context.bench.log}"
        )
    figures = replace(figures_of(measurement), batch=batch)
    speed = f", {format_rate(figures.samples_per_second)}" if figures.samples_per_second else ""
    context.note(f"batch {batch}: {figures.outcome}, peak {format_bytes(figures.peak_bytes)}{speed}")
    return figures


def lost(record: BatchRecord) -> list[int]:
    """Return the batches whose processes were lost: nothing is known of them."""
    return [figures.batch for figures in record.without if figures.batch and figures.outcome is Outcome.LOST]


def without_lost(record: BatchRecord) -> BatchRecord:
    """Return the record without lost figures, which another run measures again."""
    gone = lost(record)
    known = tuple(figures for figures in record.without if figures.batch not in gone)
    return replace(record, without=known, is_complete=record.is_complete and not gone)


LEAST_PAIRS = 2
"""One pair has no interval: what slows one process of it alone looks like a large difference."""

PAIRS = 5
"""So many pairs of fresh processes are measured at most."""

LEAST_TO_GIVE_UP = 3
"""Three pairs tell roughly how far pairs scatter."""

TOO_NEAR = 0.5
"""The pairs end early where their mean is nearer to what it is held against than this share of half the interval that
all pairs would have. They decide as often as all pairs do, with fewer pairs where nothing is to be decided. With a
whole half they would decide less often."""

MISS = 0.05
"""Chance that an interval lies on the wrong side of the margin, each time that one is made."""

PAIR = (Task.CONFIRMATION, Task.CONFIRMATION)
"""Tasks of a pair of fresh processes."""


def compare_in_pairs(  # noqa: PLR0913  (two runs, and what bounds their pairs)
    run_with: Callable[[], float | None],
    run_without: Callable[[], float | None],
    ratio: float,
    *,
    least_ratio: float,
    are_neighbours: bool,
    has_time: Callable[[], bool],
    least: int = LEAST_PAIRS,
    most: int = PAIRS,
) -> Comparison:
    """Compare two runs by pairs of neighbours, after a first comparison: A B, B A, A B.

    A run gives samples/s, or ``None`` where it failed. ``ratio`` is the throughput with recompute over that without, as
    measured so far. It counts as a pair where the two were neighbours, measured one right after the other. After the
    ``least`` pairs they end as soon as they say which is faster.
    """
    ratios = [ratio] if are_neighbours else []
    found = Comparison(ratio=ratio, pairs=len(ratios), is_clear=False)
    while (len(ratios) < least or (not found.is_clear and _may_become_clear(ratios, least_ratio, most))) and has_time():
        if len(ratios) % 2 == 0:
            recomputed, plain = run_with(), run_without()
        else:
            plain, recomputed = run_without(), run_with()
        if not recomputed or not plain:
            break
        ratios.append(recomputed / plain)
        found = compare(ratios, least_ratio)
    return found


def _may_become_clear(ratios: Sequence[float], least_ratio: float, most: int) -> bool:
    if len(ratios) < LEAST_TO_GIVE_UP:
        return True
    logs = [math.log(ratio) for ratio in ratios]
    distance = abs(statistics.fmean(logs) - math.log(least_ratio))
    return len(ratios) < most and distance >= TOO_NEAR * _half_interval(logs, most)


def has_enough_pairs(comparison: Comparison, *, has_time: bool) -> bool:
    """Tell whether it was not the time that ended a comparison."""
    return comparison.is_clear or comparison.pairs >= PAIRS or has_time


def compare(ratios: Sequence[float], least_ratio: float) -> Comparison:
    """Compare ratios of throughput, one of each pair, with a ratio that is to be reached.

    The ratio is their median, because one of several pairs may be spoilt. The interval is that of their mean. It is
    clear where the whole interval lies on one side.
    """
    if len(ratios) < LEAST_PAIRS:
        return Comparison(ratio=ratios[0], pairs=1, is_clear=False)
    logs = [math.log(ratio) for ratio in ratios]
    centre = statistics.fmean(logs)
    half = _half_interval(logs, len(logs))
    found = Comparison(
        ratio=statistics.median(ratios),
        low=math.exp(centre - half),
        high=math.exp(centre + half),
        pairs=len(ratios),
        is_clear=False,
    )
    return replace(found, is_clear=judge(found, least_ratio) is not Verdict.UNDECIDED)


def _half_interval(logs: Sequence[float], pairs: int) -> float:
    """Return half the interval of the mean of so many pairs, which scatter as these do."""
    return student_quantile(MISS, pairs - 1) * statistics.stdev(logs) / math.sqrt(pairs)
