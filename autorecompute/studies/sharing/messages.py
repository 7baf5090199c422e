"""What workers that share a study tell each other."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.race_record import RaceRecord


class Stage(enum.StrEnum):
    """What a worker is at."""

    SEARCHING = "searching"
    """It measures, or looks for what to measure."""
    DONE = "done"
    """It has nothing left to measure, unless the others find something."""
    CONFIRMING = "confirming"
    """It makes an answer of what all have measured."""
    LEFT = "left"
    """It ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedAnswer:
    """All that the one worker which confirmed has for the folders of the others.

    Attributes:
        result: The answer.
        race: The finalists' rounds; ``None`` where there were none.
        rejections: Who cannot be the answer.
        confirmed: Who was confirmed.
    """

    result: Result
    race: RaceRecord | None = None
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()
