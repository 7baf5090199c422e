"""Finalists: what each measured in every round, and their order by that."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.figures import comparable_steps
from autorecompute.measurement import Trial
from autorecompute.studies.race_record import RoundRecord
from autorecompute.tuning.intervals import Interval, centre, interval

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIE = 0.02
"""Throughputs closer than this share are a tie, which the lower peak wins."""

LOG_TIE = -math.log1p(-TIE)
"""The same, between the logarithms of two step times."""

SPREAD_CONFIDENCE = 0.95
"""How surely a relative throughput lies in the spread that is printed with it."""

LEAST_TELLING = 2
"""Fewer undisturbed rounds than this are not enough for an estimate of their own, nor for a spread."""

UNKNOWN = Interval(-math.inf, 0.0, math.inf)
"""What is known of a difference where every round was disturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(RoundRecord):
    """A finalist in one round, with what its steps say."""

    @property
    def seconds(self) -> float:
        """Median step: wall time, or processor time where the round was disturbed."""
        return statistics.median(self.cpu_seconds if self.is_disturbed and self.cpu_seconds else self.step_seconds)

    @property
    def ratio(self) -> float | None:
        """Step time of the reference over its own, on the same clock; ``None`` where the round had no reference."""
        is_cpu_time = self.is_disturbed and self.cpu_seconds
        reference = self.reference_cpu_seconds if is_cpu_time else self.reference_seconds
        return statistics.median(reference) / self.seconds if reference else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A finalist.

    Attributes:
        trial: Its trial in the study.
        rounds: One for each round it ran in, from the first round on without a gap.
    """

    trial: Trial
    rounds: tuple[Round, ...] = ()

    @property
    def ratios(self) -> list[float]:
        """Step time of the reference over its own, one for each telling round with a reference."""
        return [run.ratio for run in _telling(self.rounds) if run.ratio is not None]

    @property
    def relative_throughput(self) -> float | None:
        """Median over the rounds; the trial's own figure where no round had a reference."""
        return statistics.median(self.ratios) if self.ratios else self.trial.relative_throughput

    @property
    def spread(self) -> tuple[float, float] | None:
        """Return where the relative throughput lies at ``SPREAD_CONFIDENCE``.

        ``None`` before two rounds with a reference that nothing disturbed.
        """
        ratios = [run.ratio for run in self.rounds if run.ratio is not None and not run.is_disturbed]
        if len(ratios) < LEAST_TELLING:
            return None
        found = interval([math.log(ratio) for ratio in ratios], (1 - SPREAD_CONFIDENCE) / 2)
        return math.exp(found.low), math.exp(found.high)

    @property
    def peak_bytes(self) -> int:
        """Peak of its trial."""
        assert self.trial.measurement.peak_bytes is not None, "a finalist was measured"
        return self.trial.measurement.peak_bytes


def fitting_finalists(trials: Sequence[Trial], steps: Mapping[int, float] | None = None) -> list[Finalist]:
    """Return the configs that fit, fastest first.

    Args:
        trials: What was measured.
        steps: What their steps should really take, by number; without it, what was measured counts, relative to their
            reference where all of them have one.
    """
    fitting = [trial for trial in trials if trial.fits]
    has_all = all(trial.relative_throughput is not None for trial in fitting)
    medians = comparable_steps([trial.measurement for trial in fitting])
    seconds = {trial.number: median for trial, median in zip(fitting, medians, strict=True) if median}

    def slowness(trial: Trial) -> float:
        if steps is not None:
            return steps[trial.number]
        return -(trial.relative_throughput or 0.0) if has_all else seconds[trial.number]

    return [Finalist(trial=trial) for trial in sorted(fitting, key=slowness)]


def gap(first: Finalist, second: Finalist, miss: float) -> Interval:
    """Return how much longer a step of the first takes, as a logarithm, over the undisturbed rounds that both ran in.

    Args:
        first: A finalist with at least one run.
        second: Another one.
        miss: Chance of a wrong end, for each end.
    """
    evidence = [both for both in _shared_rounds(first, second) if not any(run.is_disturbed for run in both)]
    return interval([_difference(*both) for both in evidence], miss) if evidence else UNKNOWN


def rank(entries: Sequence[Finalist]) -> list[Finalist]:
    """Return them by the estimates alone, fastest first; the lower peak first where they are equal.

    No estimate is taken for a tie: a config that looks as fast in noise may be any share slower.
    """
    lags = {entry.trial.number: sum(lag(entry, other) for other in entries) for entry in entries}
    return sorted(entries, key=lambda entry: (lags[entry.trial.number], entry.peak_bytes))


def lag(entry: Finalist, other: Finalist) -> float:
    """Return the estimate alone of how much longer a step of the first takes, as a logarithm."""
    shared = _shared_rounds(entry, other)
    clean = [both for both in shared if not any(run.is_disturbed for run in both)]
    return centre([_difference(*both) for both in (clean if len(clean) >= LEAST_TELLING else shared)])


def is_faster(entry: Finalist, other: Finalist) -> bool:
    """Tell whether the first is faster by more than a tie, by the rounds that both ran in or beside the reference."""
    if entry.rounds and other.rounds:
        return lag(entry, other) < -LOG_TIE
    own, others = entry.relative_throughput, other.relative_throughput
    return own is not None and others is not None and math.log(own / others) > LOG_TIE


def _shared_rounds(first: Finalist, second: Finalist) -> list[tuple[Round, Round]]:
    # Only what two finalists did in the same round is compared: what slows a whole round cancels.
    return list(zip(first.rounds, second.rounds, strict=False))


def _difference(own: Round, others: Round) -> float:
    return math.log(own.seconds / others.seconds)


def _telling(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the undisturbed rounds; all of them where too few are, as an estimate is needed all the same."""
    clean = [run for run in rounds if not run.is_disturbed]
    return clean if len(clean) >= LEAST_TELLING else rounds
