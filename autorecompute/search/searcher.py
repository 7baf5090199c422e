"""The interface between choosing a config and measuring it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from autorecompute.plans import Config
from autorecompute.prediction import Prediction

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autorecompute.measurement import Trial

Limit: TypeAlias = Callable[[Sequence["Trial"]], int]
"""The limit that peaks are held against, as the trials so far tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A config worth a trial.

    Attributes:
        config: The config, in its canonical form and not among the trials yet.
        reason: Why, in a few words for the one who watches.
        prediction: What the search expects of it; ``None`` where it cannot tell.
    """

    config: Config
    reason: str
    prediction: Prediction | None = None


def preset_reason(config: Config) -> str:
    """Return why a preset is measured: no recompute is what all others are held against."""
    return "baseline" if config.is_none else "preset"


class Searcher(Protocol):
    """Chooses what to measure next from what was measured."""

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain.

        The answer depends on the trials alone, so that an interrupted search goes on where it stopped.

        Args:
            trials: What was measured.
            claimed: What others are measuring at this moment, which is not proposed. ``None`` then says that nothing
                is left to do before they are through.
        """
        ...

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Return what is expected of a config that somebody else chose; ``None`` where the searcher cannot tell."""
        ...

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return what the timed trials' steps should really take, by number: who was measured fastest was lucky.

        Only their order has a meaning.
        """
        ...


class SearcherWrapper:
    """Expects what another searcher does; each subclass has its own way to propose.

    Args:
        searcher: The other one.
    """

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Return what the other searcher expects of a config."""
        return self._searcher.predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return what the other searcher expects of the timed trials."""
        return self._searcher.expect_steps(trials)
