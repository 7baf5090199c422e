"""Decides between finalists by interleaved rounds, so that all of them see the same weather."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome, Trial
from autorecompute.plans import Config
from autorecompute.trials.bench import Effort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.trials import Bench

FINALISTS = 4
ROUNDS = 3
ROUND_EFFORT = Effort(warmup=1, steps=3)
TIE = 0.02
"""Throughputs closer than this share are a tie, which the lower peak wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A finalist after the race.

    Attributes:
        trial: Its trial in the study.
        ratios: Step time of the reference over its own, one for each round; empty where the reference cannot run.
        step_seconds: Its median step, one for each round.
    """

    trial: Trial
    ratios: tuple[float, ...] = ()
    step_seconds: tuple[float, ...] = ()

    @property
    def relative_throughput(self) -> float | None:
        """Median over the rounds; the trial's own figure where no round had a reference."""
        return statistics.median(self.ratios) if self.ratios else self.trial.relative_throughput

    @property
    def steps_per_second(self) -> float:
        """What finalists are compared by where one of them has no relative throughput."""
        measurement = self.trial.measurement
        seconds = statistics.median(self.step_seconds) if self.step_seconds else measurement.median_step_seconds
        assert seconds, "a finalist was measured"
        return 1 / seconds

    @property
    def peak_bytes(self) -> int:
        """Peak of its trial."""
        assert self.trial.measurement.peak_bytes is not None, "a finalist was measured"
        return self.trial.measurement.peak_bytes


def finalists(trials: Sequence[Trial]) -> list[Standing]:
    """The configs that fit, fastest first."""
    return _by_speed([Standing(trial=trial) for trial in trials if trial.fits])[0]


def race(bench: Bench, standings: Sequence[Standing], *, has_reference: bool) -> list[Standing]:
    """Measures the standings in rounds, each beside the reference, and ranks them anew.

    A finalist that fails in a round is out.
    """
    entries: list[Standing | None] = list(standings)
    for number in range(ROUNDS):
        reference = bench.measure(Config(), ROUND_EFFORT).median_step_seconds if has_reference else None
        # Each round starts with another finalist: whatever favours a place in the round favours each of them once.
        for place in range(len(entries)):
            index = (number + place) % len(entries)
            entry = entries[index]
            entries[index] = _run(bench, entry, reference) if entry is not None else None
    return rank([entry for entry in entries if entry is not None])


def _run(bench: Bench, entry: Standing, reference: float | None) -> Standing | None:
    measurement = bench.measure(entry.trial.config, ROUND_EFFORT)
    seconds = measurement.median_step_seconds
    if measurement.outcome is not Outcome.OK or seconds is None:
        return None
    ratios = (*entry.ratios, reference / seconds) if reference is not None else entry.ratios
    return replace(entry, ratios=ratios, step_seconds=(*entry.step_seconds, seconds))


def rank(entries: Sequence[Standing]) -> list[Standing]:
    """Fastest first; among those that tie with the fastest of the rest, the lower peak first."""
    (rest, speed), ranking = _by_speed(entries), []
    while rest:
        tied = [entry for entry in rest if speed(entry) >= speed(rest[0]) * (1 - TIE)]
        winner = min(tied, key=lambda entry: entry.peak_bytes)
        ranking.append(winner)
        rest.remove(winner)
    return ranking


def _by_speed(entries: Sequence[Standing]) -> tuple[list[Standing], Callable[[Standing], float]]:
    """The entries, fastest first, and what they were compared by: one measure for all, relative where all have that."""
    has_all = all(entry.relative_throughput is not None for entry in entries)

    def speed(entry: Standing) -> float:
        return (entry.relative_throughput or 0.0) if has_all else entry.steps_per_second

    return sorted(entries, key=speed, reverse=True), speed
