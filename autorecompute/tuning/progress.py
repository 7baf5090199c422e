"""Who watches a tuning while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Detection, Prediction, Trial


class Progress(Protocol):
    """Told of each step of a tuning, in order."""

    def detected(
        self,
        detection: Detection,
        limit_bytes: int,
        *,
        known_trials: Sequence[Trial],
        budget: int,
        deadline_seconds: float,
    ) -> None:
        """The script reached its first training session.

        Args:
            detection: What it trains.
            limit_bytes: The memory limit.
            known_trials: What earlier sessions, and other workers, measured.
            budget: How many trials there may be, those included.
            deadline_seconds: When the command should end, on the monotonic clock; infinite without a timeout.
        """
        ...

    def trial_begins(self, number: int, description: str, reason: str, prediction: Prediction | None) -> None:
        """A config is about to be measured, of which so much is expected."""
        ...

    def trial_ended(self, trial: Trial) -> None:
        """It was measured, or failed to be."""
        ...

    def leads(self, trial: Trial, relative_throughput: float | None) -> None:
        """The search is over for now, and this config is the one to be confirmed.

        Args:
            trial: Its trial.
            relative_throughput: Its throughput as a share of that without recompute, by all that is known.
        """
        ...

    def note(self, text: str) -> None:
        """Something worth a line happened."""
        ...
