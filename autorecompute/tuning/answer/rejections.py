"""Finalists that were not confirmed: kept as soon as it is known, so that no later run confirms them again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.result import Rejection
    from autorecompute.studies import StudyFolder


class Rejections:
    """What is known of a study's finalists that cannot be its answer, over all its runs.

    Args:
        folder: The study.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._known = folder.rejections()

    @property
    def excess_bytes(self) -> int:
        """What a whole process needed beyond its timed steps, at least; 0 where none needed too much."""
        return min((rejection.excess_bytes for rejection in self._known if rejection.excess_bytes), default=0)

    @property
    def configs(self) -> frozenset[Config]:
        """Theirs."""
        return frozenset(known.config for known in self._known)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What else than memory was wrong, in words."""
        return tuple(known.reason for known in self._known if known.outcome is Outcome.WRONG_GRADIENT)

    def describe(self) -> list[str]:
        """A line for each of them."""
        return [f"{known.outcome} in an earlier session: {known.reason}" for known in self._known]

    def remaining(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials of configs that may still be the answer."""
        return [trial for trial in trials if trial.config not in self.configs]

    def add(self, rejection: Rejection) -> None:
        """Keeps another one.

        Raises:
            SetupError: the folder cannot be written.
        """
        self._known.append(rejection)
        self._folder.keep_rejections(self._known)
