"""What a study keeps of its last race: ``race.json``, the finalists' rounds."""

from __future__ import annotations

from dataclasses import dataclass

from autorecompute.ranges import Number, PositiveBytes, StepSeconds
from autorecompute.ranking import Ranking

FILE = "race.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A finalist in one round of a race.

    Attributes:
        step_seconds: Its timed steps.
        cpu_seconds: The same in processor time; empty where another device does the work.
        reference_seconds: The steps of the reference in the same round; empty where there was none.
        reference_cpu_seconds: The same in processor time.
        is_disturbed: Whether other processes disturbed anything that was measured in this round, so that it is no
            evidence.
        marks: What else happened meanwhile, in words.
    """

    step_seconds: tuple[StepSeconds, ...]
    cpu_seconds: tuple[StepSeconds, ...] = ()
    reference_seconds: tuple[StepSeconds, ...] = ()
    reference_cpu_seconds: tuple[StepSeconds, ...] = ()
    is_disturbed: bool = False
    marks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.step_seconds:
            raise ValueError("is a round without a timed step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRecord:
    """A finalist.

    Attributes:
        trial: Number of its trial.
        description: What it recomputes, in a few words.
        peak_bytes: Its highest peak.
        rounds: Its rounds.
    """

    trial: Number
    description: str
    peak_bytes: PositiveBytes
    rounds: tuple[RoundRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRecord:
    """What ``race.json`` holds.

    Attributes:
        ranking: How the race ended; ``None`` where it did not end.
        standings: The finalists, the winner first.
        over_limit: The finalists that were over the limit in their last round.
        failed: Numbers of those that were not measured in one.
        trials: How many trials the study had: with others, others might have raced.
    """

    ranking: Ranking | None
    standings: tuple[StandingRecord, ...]
    over_limit: tuple[StandingRecord, ...] = ()
    failed: tuple[Number, ...] = ()
    trials: Number = 0
