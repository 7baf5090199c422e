"""Whether there is time for another trial, and for what has to come after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.tuning.answer.race import FINALISTS, LOOKS
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.trials import Bench
    from autorecompute.tuning.budget import Budget

NEEDED = (Task.CHECK, Task.CONFIRMATION)
WISHED = (*[Task.HEAT] * (LOOKS[0] * (FINALISTS + 1)), Task.CONFIRMATION)
"""A race up to its first look, and the winner's rival."""


class Pace:
    """Ends a search while there is time to make an answer of it.

    Args:
        budget: The time there is.
        bench: Where trials are measured.
    """

    def __init__(self, budget: Budget, bench: Bench) -> None:
        self._budget, self._bench = budget, bench

    def reserve_seconds(self, trials: Sequence[Trial]) -> float:
        """What has to be left after these trials; where none of them fits, finding one that does comes first."""
        fits = any(trial.fits for trial in trials)
        return self._budget.reserve_seconds(NEEDED, WISHED if fits else ())

    def allows_trial(self, trials: Sequence[Trial]) -> bool:
        """Whether another trial should end in time; a script that none waits for is started for it.

        Raises:
            ScriptError: the script fails before it trains.
        """
        reserve_seconds = self.reserve_seconds(trials)
        if not self._bench.is_live and self._budget.allows(Task.START, reserve_seconds=reserve_seconds):
            with self._budget.timing(Task.START):
                self._bench.detect()
        return self._bench.is_live and self._budget.allows(Task.TRIAL, reserve_seconds=reserve_seconds)
