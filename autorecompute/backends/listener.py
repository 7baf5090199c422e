"""What a training system tells of the process that it trains in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import GradientCheck
    from autorecompute.plans import Config
    from autorecompute.training_job import Detection


class Listener(Protocol):
    """Who is told what happens in the training process."""

    @property
    def target_batch(self) -> int | None:
        """Sample that a forward is to receive; ``None`` for as many as the script gives."""

    @property
    def fake_card(self) -> str | None:
        """Return the card that tensors without data stand for, empty for the CPU; ``None`` where tensors have data."""

    @property
    def fake_ranks(self) -> int:
        """Return as one of how many ranks the script trains on such tensors; 0 for a script as it is."""

    @property
    def replaces_checkpointing(self) -> bool:
        """Tell whether the checkpoints that the script makes itself are to be switched off."""

    @property
    def is_trial(self) -> bool:
        """Tell whether the process is there to be measured: its training leads nowhere."""

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Return a training session exists and no step has run in it; the answer is the config to train with."""

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note that the model is about to be called for training with this many samples.

        Args:
            batch: Samples of the call.
            check: Compares a config's gradients on this very batch with those without recompute, and looks at a whole
                step with it; with ``compares=False`` it does that alone.
        """

    def on_several_models(self) -> None:
        """Note that a second model trains in one step."""

    def on_fault(self, error: Exception) -> None:
        """Note that what follows the script has failed before it could say anything; nothing of the training has."""

    def on_failure(self, error: Exception) -> None:
        """Note that a training call of the model has raised this, and the script is about to get it."""

    def on_fallback(self, message: str) -> None:
        """Note that the model is about to be trained without the training system, for the reason in the sentence."""
