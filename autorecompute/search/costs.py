"""What trials cost: making a config ready, such as compiling a model, may take longer than its steps."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config

    Needs = Callable[[Config], frozenset[str]]
    """The names of what a config has to have made ready; what one config has had made is ready for all others."""


def needs_nothing(config: Config) -> frozenset[str]:
    """Return those of a training system whose configs are all as quickly switched to."""
    del config
    return frozenset()


class TrialCosts:
    """Wall time that trials of configs should take, learnt from the trials so far.

    Args:
        trials: What was measured.
        needs: What each config has to have made ready.
    """

    def __init__(self, trials: Sequence[Trial], needs: Needs) -> None:
        self._needs = needs
        self._ready: frozenset[str] = frozenset()
        self._seconds_of_one = self._learn([trial for trial in trials if trial.measurement.outcome.is_measured])

    @property
    def differ(self) -> bool:
        """Tell whether making configs ready was seen to take any time."""
        return self._seconds_of_one > 0

    def relative(self, config: Config) -> float:
        """Return how many times as long a trial of the config should take as one that finds everything ready.

        1 or more.
        """
        return 1 + len(self._needs(config) - self._ready) * self._seconds_of_one

    def _learn(self, trials: Sequence[Trial]) -> float:
        """Return what making one thing ready takes, in trials that find everything ready."""
        made: list[float] = []
        for trial in trials:
            new = self._needs(trial.config) - self._ready
            self._ready |= new
            if new:
                made.append(trial.measurement.compile_seconds / len(new))
        # The first one also starts whatever makes it.
        usual = statistics.median(made[1:] or made or [0.0])
        measuring = statistics.median([_measuring_seconds(trial) for trial in trials] or [0.0])
        return usual / measuring if measuring else 0.0


def _measuring_seconds(trial: Trial) -> float:
    measurement = trial.measurement
    spent = measurement.warmup_seconds + sum(measurement.step_seconds) + (trial.overhead_seconds or 0.0)
    return max(spent - measurement.compile_seconds, 0.0)
