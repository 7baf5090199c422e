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
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Config
    from autorecompute.result import Best, Result
    from autorecompute.tuning.context import TuningContext


LEAST_SPEEDUP = 1.01
"""Shorter batches get a config of their own where it is faster by so much; else that of the next longer ones."""

TURNS = 4  # steps in which it is timed, in turns with the config of the longest
NO_TIME = "no time to measure a config for"
"""Begins a warning of an answer whose shorter batches are to be measured by the next run."""

NEEDED_TOO_MUCH = "what should fit needed too much"

ATTEMPTS = 3  # so many lengths are tried of a config that misses the limit by a little
MULTIPLE = 8  # lengths at which buckets end are multiples of so many tokens


def tune_lengths(context: TuningContext, trials: Sequence[Trial], result: Result) -> Result:
    """Return the answer with configs for shorter batches, each measured at its longest length.

    Trials of the longest tell how fast configs are, and fake steps of shorter batches what they take. Where there is no
    time for all, those that were measured are kept, and another run begins with them anew. An answer that recomputes
    nothing needs none.
    """
    best, longest = result.best, context.job.longest
    had_no_time = any(text.startswith(NO_TIME) for text in result.warnings)
    if best is None or longest is None or not best.confirmed or (best.longest is not None and not had_no_time):
        return result
    if context.shared is not None:
        context.note("workers that share a study find one config for all lengths")
        return result
    result = replace(result, warnings=tuple(text for text in result.warnings if not text.startswith(NO_TIME)))
    tuner = LengthTuner(context, trials, best)
    best = replace(best, buckets=tuner.measure(), longest=tuner.longest)
    result = replace(result, best=best, warnings=(*result.warnings, *tuner.why_not))
    context.bench.close()  # its batches are short
    context.folder.finish(result)
    return result


class LengthTuner:
    """Chooses and measures the configs of shorter batches.

    Attributes:
        longest: The length of the longest batch as the model receives it.
        why_not: Reasons for which shorter batches have no config of their own, in words.
    """

    def __init__(self, context: TuningContext, trials: Sequence[Trial], best: Best) -> None:
        self._context, self._trials, self._best = context, trials, best
        self.longest = context.dims[SEQUENCE]
        self.why_not: list[str] = []

    def measure(self) -> tuple[Bucket, ...]:
        """Return the configs that hold the limit and are faster than that of the longest, as far as there is time."""
        buckets: list[Bucket] = []
        for length, config in self.plan():
            shorter = buckets[-1].length if buckets else 0
            try:
                bucket = self._measure_up_to(length, config, shorter)
            except OutOfTime:  # a training has no steps left for it
                self.why_not.append(f"{NO_TIME} batches of {shorter + 1} to {length} tokens")
                break
            if bucket is not None:
                buckets.append(bucket)
                self.why_not = [text for text in self.why_not if NEEDED_TOO_MUCH not in text]  # it is for these, too
        return tuple(buckets)

    def _measure_up_to(self, length: int, config: Config, shorter: int) -> Bucket | None:
        """Return the figures of a config at a length, or at one below that where it misses the limit by a little.

        ``None`` where that comes down to the bucket before it, where the config is no faster, or for want of time.
        """
        wanted = length
        for _ in range(ATTEMPTS):
            if not self._context.budget.allows(Task.START, Task.TRIAL, Task.TRIAL, Task.CHECK):
                self.why_not.append(f"{NO_TIME} batches of {shorter + 1} to {length} tokens")
                return None
            found = self._measure(length, config)
            if isinstance(found, Bucket) or found is None:
                return found
            # What lies above the limit is taken off the tokens, and a little more.
            over = max(found - self._room_bytes, 0) / max(found - self._context.rest_bytes, 1)
            length = round(length * (1 - over)) // MULTIPLE * MULTIPLE - MULTIPLE
            if length <= shorter:
                break
        self.why_not.append(f"batches of {wanted} tokens have no config of their own: {NEEDED_TOO_MUCH}")
        return None

    def plan(self) -> list[tuple[int, Config]]:
        """Return the lengths at which buckets should end, in ascending order, each with its config.

        That is the one that should be the fastest of those that hold the limit at a length whose steps were looked at.
        """
        detection, whole = self._context.detection, self._context.memory
        memories = backend_of(detection.versions).memory_by_length(detection)
        if whole is None or not memories or self._best.config.is_none:
            return []
        told = whole.forecast(self._best.config, self._context.dims)
        beyond_bytes = max(0, self._best.peak_bytes - told.peak_bytes) + round(whole.likely_error * told.live_bytes)
        room_bytes = self._context.problem.limit_bytes - beyond_bytes
        found: dict[int, Config] = {}
        for (length, memory), longer in pairwise([*sorted(memories.items()), (self.longest, whole)]):
            searcher = ModelSearcher(
                detection.space,
                limit_bytes=room_bytes,
                memory=memory,
                dims=self._dims_at(length),
                prior=self._trials,
            )
            config = searcher.fastest()
            if config is not None and config != self._best.config:
                found.setdefault(self._last_length(config, room_bytes, (length, memory), longer), config)
        following = [*list(found.values())[1:], None]
        return [(length, one) for (length, one), other in zip(found.items(), following, strict=False) if one != other]

    def _dims_at(self, length: int) -> dict[str, int]:
        return {**self._context.dims, SEQUENCE: length}

    def _last_length(
        self, config: Config, room_bytes: int, fitting: tuple[int, MemoryModel], longer: tuple[int, MemoryModel]
    ) -> int:
        """Return the last length at which a config holds the limit, between one where it does and a longer one.

        A peak is taken to lie on the line through both. It lies on or below that: tensors grow with the length or its
        square.
        """
        low, high = fitting[0], longer[0]
        first, last = (
            memory.forecast(config, self._dims_at(length)).peak_bytes for length, memory in (fitting, longer)
        )
        share = min((room_bytes - first) / max(last - first, 1), 1.0)
        if high == self.longest and share == 1.0:
            return low  # the search of the longest has passed it over
        found = round(low + share * (high - low)) // MULTIPLE * MULTIPLE
        return max(low, min(found, self.longest - MULTIPLE) if high == self.longest else found)

    def _measure(self, length: int, config: Config) -> Bucket | int | None:
        """Return the figures of a config at a length, or its peak where that is above the limit.

        ``None`` where it is no faster than the config of the longest, or fails.
        """
        context, bench, best = self._context, self._context.bench, self._best
        description = context.detection.space.describe(config)
        context.note(f"measuring batches of {length} tokens: {description}")
        effort = replace(context.settings.effort, length=length)
        if bench.starts and not bench.is_live:  # a process of ours begins with its longest batch
            bench.measure(best.config, Effort(warmup=1, steps=1))
        with context.budget.timing(Task.TRIAL):
            own = bench.measure(config, effort).under(self._room_bytes)
        peak_bytes, not_taken = own.peak_bytes, f"not taken at {length} tokens: {description}"
        if peak_bytes is None:
            self.why_not.append(f"{not_taken}: {own.outcome} {own.message}".rstrip())
            return None
        if own.outcome is not Outcome.OK:
            context.note(f"{not_taken}: {own.message}")
            return peak_bytes
        check = None if config.is_none else bench.check(config)
        if check is not None and not (isinstance(check, GradientCheck) and check.agrees):
            self.why_not.append(f"{not_taken}: {check.message}")
            return None
        beside = bench.measure(best.config, effort)
        turns = measure_in_turns(bench, [config, best.config], TURNS)
        seconds = comparable_steps([join([own, turns[config]]), join([beside, turns[best.config]])])
        if not own.samples or not seconds[0] or not seconds[1] or seconds[1] / seconds[0] < LEAST_SPEEDUP:
            context.note(f"{not_taken}: no faster than the config of the longest")
            return None
        return Bucket(
            length=length,
            config=config,
            description=description,
            peak_bytes=peak_bytes,
            samples_per_second=own.samples / seconds[0],
            speedup=seconds[1] / seconds[0],
        )

    @property
    def _room_bytes(self) -> int:
        """Return the limit for a trial: the answer's whole process took more than its own."""
        peaks = [trial.measurement.peak_bytes for trial in self._trials if trial.config == self._best.config]
        beyond_bytes = max([0, *(self._best.peak_bytes - peak for peak in peaks if peak is not None)])
        return self._context.problem.limit_bytes - beyond_bytes
