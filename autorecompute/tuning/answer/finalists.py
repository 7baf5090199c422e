"""Finalists: what each measured in every round, and their order by that."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(RoundRecord):
    """A finalist in one round, with what its steps say."""

    @property
    def seconds(self) -> float:
        """Median step."""
        return statistics.median(self.step_seconds)

    @property
    def ratio(self) -> float | None:
        """Step time of the reference over its own; ``None`` where the round had no reference."""
        return statistics.median(self.reference_seconds) / self.seconds if self.reference_seconds else None


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
        """Step time of the reference over its own, one for each round with a reference."""
        return [run.ratio for run in self.rounds if run.ratio is not None]

    @property
    def relative_throughput(self) -> float | None:
        """Median over the rounds; the trial's own figure where no round had a reference."""
        return statistics.median(self.ratios) if self.ratios else self.trial.relative_throughput

    @property
    def spread(self) -> tuple[float, float] | None:
        """Where the relative throughput lies at ``SPREAD_CONFIDENCE``; ``None`` before two rounds with a reference."""
        if len(self.ratios) < 2:  # noqa: PLR2004  (a single round tells nothing of the spread)
            return None
        found = interval([math.log(ratio) for ratio in self.ratios], (1 - SPREAD_CONFIDENCE) / 2)
        return math.exp(found.low), math.exp(found.high)

    @property
    def peak_bytes(self) -> int:
        """Peak of its trial."""
        assert self.trial.measurement.peak_bytes is not None, "a finalist was measured"
        return self.trial.measurement.peak_bytes


def fitting_finalists(trials: Sequence[Trial], steps: Mapping[int, float] | None = None) -> list[Finalist]:
    """The configs that fit, fastest first.

    Args:
        trials: What was measured.
        steps: What their steps should really take, by number; without it, what was measured counts, relative to their
            reference where all of them have one.
    """
    fitting = [trial for trial in trials if trial.fits]
    has_all = all(trial.relative_throughput is not None for trial in fitting)

    def slowness(trial: Trial) -> float:
        if steps is not None:
            return steps[trial.number]
        seconds = trial.measurement.median_step_seconds
        assert seconds, "what fits was measured"
        return -(trial.relative_throughput or 0.0) if has_all else seconds

    return [Finalist(trial=trial) for trial in sorted(fitting, key=slowness)]


def gap(first: Finalist, second: Finalist, miss: float) -> Interval:
    """How much longer a step of the first takes, as a logarithm, over the rounds both ran in.

    Args:
        first: A finalist with at least one run.
        second: Another one.
        miss: Chance of a wrong end, for each end.
    """
    return interval(_differences(first, second), miss)


def rank(entries: Sequence[Finalist]) -> list[Finalist]:
    """By the estimates alone, fastest first; the lower peak first where they are equal.

    No estimate is taken for a tie: a config that looks as fast in noise may be any share slower.
    """
    lags = {entry.trial.number: sum(_lag(entry, other) for other in entries) for entry in entries}
    return sorted(entries, key=lambda entry: (lags[entry.trial.number], entry.peak_bytes))


def _lag(entry: Finalist, other: Finalist) -> float:
    return centre(_differences(entry, other))


def _differences(first: Finalist, second: Finalist) -> list[float]:
    # Only what two finalists did in the same round is compared: what slows a whole round cancels.
    rounds = zip(first.rounds, second.rounds, strict=False)
    return [math.log(own.seconds / others.seconds) for own, others in rounds]
