"""How a race of finalists ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from autorecompute.ranges import Count, Probability
from autorecompute.units import format_count


class RaceEnd(enum.StrEnum):
    """What a race between the fastest configs came to."""

    RANKED = "ranked"
    """One is the fastest, or as fast with a lower peak."""
    TIE = "tie"
    """Several are as fast; the lowest peak of them was taken."""
    UNDECIDED = "undecided"
    """Rounds or time were used up before either was sure; the best estimate was taken."""
    ALONE = "alone"
    """Nobody else was left to compare it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How a race ended.

    Attributes:
        end: What it came to.
        rounds: After how many rounds.
        disturbed: How many of them were no evidence, because the machine was busy with other work.
        confidence: How surely a race that is ranked or tied has no other winner.
        rivals: Who else was left, in words, the fastest first: all of them in a tie, or all that were still possible.
    """

    end: RaceEnd
    rounds: Count
    disturbed: Count = 0
    confidence: Probability
    rivals: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.end in {RaceEnd.TIE, RaceEnd.UNDECIDED} and not self.rivals:
            raise ValueError(f"ended as {self.end} with nobody else left")

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        rounds = format_count(self.rounds, "round")
        sureness = f"at {100 * self.confidence:.0f} %"
        others = f" and {format_count(len(self.rivals) - 1, 'other')}" if len(self.rivals) > 1 else ""
        match self.end:
            case RaceEnd.ALONE:
                return f"no rival was left in {rounds}"
            case RaceEnd.RANKED:
                outcome = f"ranked {sureness} in {rounds}"
            case RaceEnd.TIE:
                outcome = f"a tie with {self.rivals[0]}{others} {sureness} in {rounds}, given to the lower peak"
            case RaceEnd.UNDECIDED:
                outcome = f"no clear winner {sureness} after {rounds}: {self.rivals[0]}{others} may be as fast"
        return f"{outcome}{self._disturbance}"

    @property
    def _disturbance(self) -> str:
        if not self.disturbed:
            return ""
        which = f"{self.disturbed} of {format_count(self.rounds, 'round')} {'was' if self.disturbed == 1 else 'were'}"
        return f"; the machine was busy with other work: {which} disturbed and counted as no evidence"
