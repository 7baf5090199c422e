"""Who watches a tuning while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autorecompute.measurement import Detection, Trial


class Progress(Protocol):
    """Told of each step of a tuning, in order."""

    def detected(self, detection: Detection, limit_bytes: int, *, known_trials: int, budget: int) -> None:
        """The script reached its first training session; ``known_trials`` come from an earlier session."""
        ...

    def trial_begins(self, number: int, description: str, reason: str) -> None:
        """A config is about to be measured."""
        ...

    def trial_ended(self, trial: Trial) -> None:
        """It was measured, or failed to be."""
        ...

    def note(self, text: str) -> None:
        """Something worth a line happened."""
        ...
