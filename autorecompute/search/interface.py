"""The interface between choosing a config and measuring it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A config worth a trial.

    Attributes:
        config: The config, in its canonical form and not among the trials yet.
        reason: Why, in a few words for the one who watches.
    """

    config: Config
    reason: str


class Searcher(Protocol):
    """Chooses what to measure next from what was measured."""

    def propose(self, trials: Sequence[Trial]) -> Proposal | None:
        """The next config to measure, or ``None`` when nothing is left to gain.

        The answer depends on the trials alone, so that an interrupted search goes on where it stopped.
        """
        ...
