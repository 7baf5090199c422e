"""Chooses a config for each length of a batch, once that of the longest is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.figures import comparable_steps
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans.savings import SEQUENCE
from autorecompute.result import Bucket
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.trials.bench import join, measure_in_turns
from autorecompute.trials.job import Effort
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Config
    from autorecompute.result import Best, Result
    from autorecompute.tuning.context import TuningContext


LEAST_SPEEDUP = 1.01
"""Shorter batches get a config of their own where it is faster by so much; else that of the next longer ones."""

TURNS = 4  # steps in which it is timed, in turns with the config of the longest
MULTIPLE = 8  # lengths at which buckets end are multiples of so many tokens


def tune_lengths(context: TuningContext, trials: Sequence[Trial], result: Result) -> Result:
    """Return the answer with configs for shorter batches, each measured at its longest length.

    Trials of the longest tell how fast configs are, and fake steps of shorter batches what they take. Where there is no
    time for all, those that were measured are kept. An answer that recomputes nothing needs none.
    """
    best, longest = result.best, context.job.longest
    if best is None or longest is None or best.longest is not None or not best.confirmed or context.shared is not None:
        return result
    size = context.dims.get(SEQUENCE, longest)
    # A script may keep the last token of each sample for its labels.
    kept = 1 if longest - size == 1 else 0
    buckets: list[Bucket] = []
    for length, config in plan_lengths(context, trials, best):
        if not context.budget.allows(Task.START, Task.TRIAL, Task.TRIAL, Task.CHECK):
            context.note(f"no time to measure a config for batches of {length} tokens and fewer")
            break
        if (bucket := _measure(context, best, length, config, kept)) is not None:
            buckets.append(bucket)
    context.bench.close()  # its batches are short
    result = replace(result, best=replace(best, buckets=tuple(buckets), longest=size))
    context.folder.finish(result)
    return result


def plan_lengths(context: TuningContext, trials: Sequence[Trial], best: Best) -> list[tuple[int, Config]]:
    """Return the lengths at which buckets should end, in ascending order, each with the config that should be fastest.

    Between two lengths whose steps were looked at, a peak is taken to lie on the line through both. It lies on or below
    that: tensors grow with the length or its square.
    """
    detection, whole = context.detection, context.memory
    memories = backend_of(detection.versions).memory_by_length(detection)
    if whole is None or not memories or best.config.is_none:
        return []
    beyond_bytes = max(0, best.peak_bytes - whole.forecast(best.config, context.dims).peak_bytes)
    room_bytes = context.problem.limit_bytes - beyond_bytes
    known = [*sorted(memories.items()), (context.dims[SEQUENCE], whole)]
    found: dict[int, Config] = {}
    for (length, memory), longer in pairwise(known):
        dims = {**context.dims, SEQUENCE: length}
        searcher = ModelSearcher(detection.space, limit_bytes=room_bytes, memory=memory, dims=dims, prior=trials)
        config = searcher.fastest()
        if config is None or config == best.config:
            continue
        found.setdefault(_last_length(context, config, room_bytes, (length, memory), longer), config)
    return [(length, config) for length, config in found.items() if config != _next(found, length)]


def _next(found: Mapping[int, Config], length: int) -> Config | None:
    return next((config for longer, config in found.items() if longer > length), None)


def _last_length(
    context: TuningContext,
    config: Config,
    room_bytes: int,
    fitting: tuple[int, MemoryModel],
    longer: tuple[int, MemoryModel],
) -> int:
    """Return the last length at which a config that fits one length holds the limit, below a longer one."""
    low, high = fitting[0], longer[0]
    peaks = [
        model.forecast(config, {**context.dims, SEQUENCE: length}).peak_bytes for length, model in (fitting, longer)
    ]
    share = min((room_bytes - peaks[0]) / max(peaks[1] - peaks[0], 1), 1.0)
    if high == context.dims[SEQUENCE] and share == 1.0:
        return low  # the search of the longest has passed it over
    return max(low, round(low + share * (high - low)) // MULTIPLE * MULTIPLE)


def _measure(context: TuningContext, best: Best, length: int, config: Config, kept: int) -> Bucket | None:
    """Return the figures of a config at a length; ``None``, with a note, where it does not fit or is no faster."""
    bench, description = context.bench, context.detection.space.describe(config)
    context.note(f"measuring batches of {length} tokens: {description}")
    effort = replace(context.settings.effort, length=length + kept)
    if not bench.is_live:  # a process begins with its longest batch
        bench.measure(best.config, Effort(warmup=1, steps=1))
    with context.budget.timing(Task.TRIAL):
        own = bench.measure(config, effort).under(context.problem.limit_bytes)
    peak_bytes = own.peak_bytes
    if peak_bytes is None or own.outcome is not Outcome.OK:
        context.note(f"not taken at {length} tokens: {description}: {own.outcome} {own.message}".rstrip())
        return None
    check = None if config.is_none else bench.check(config)
    if check is not None and not (isinstance(check, GradientCheck) and check.agrees):
        context.note(f"not taken at {length} tokens: {description}: {check.message}")
        return None
    beside = bench.measure(best.config, effort)
    turns = measure_in_turns(bench, [config, best.config], TURNS)
    seconds = comparable_steps([join([own, turns[config]]), join([beside, turns[best.config]])])
    if seconds[0] is None or seconds[1] is None or seconds[1] / seconds[0] < LEAST_SPEEDUP:
        context.note(f"not taken at {length} tokens: {description}: no faster than the config of the longest")
        return None
    return Bucket(
        length=length,
        config=config,
        description=description,
        peak_bytes=peak_bytes,
        speedup=seconds[1] / seconds[0],
    )
