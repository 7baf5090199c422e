"""The machine that fake tensors stand for: a card by its name, with its kernels and its allocator, or this one."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING

from autorecompute.backends.torch.card_kernels import CardKernels
from autorecompute.backends.torch.cards import CARDS, machine_of
from autorecompute.backends.torch.division import divide
from autorecompute.backends.torch.on_card import reserve
from autorecompute.backends.torch.sharded import is_sharded
from autorecompute.backends.torch.speeds import MeasuredSpeeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch.optim import Optimizer

    from autorecompute.backends.torch.extra import TorchDetection
    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.speeds import Speeds
    from autorecompute.backends.torch.tuned import Tuned
    from autorecompute.memory import Machine
    from autorecompute.plans import Config


class FakeMachine:
    """What a script on fake tensors is looked at for.

    Args:
        card: The card's name; empty for this machine, whose speeds are measured.
        device: ``cpu`` or ``cuda``, where this machine trains.
    """

    def __init__(self, card: str, device: str) -> None:
        self._card = card
        self._measured = None if card else MeasuredSpeeds(device)

    @property
    def speeds(self) -> Speeds:
        """Return how fast it is."""
        return CARDS[self._card] if self._measured is None else self._measured

    @property
    def machine(self) -> Machine:
        """Return the same as a record; of this machine, with the types of numbers whose speed was asked for."""
        return machine_of(self._card) if self._measured is None else self._measured.machine

    def kernels(self, optimizers: Sequence[Optimizer]) -> AbstractContextManager[None]:
        """Have operators take a card's kernels: plans and steps are then those that it would have."""
        return CardKernels(CARDS[self._card].capability).active(optimizers) if self._card else contextlib.nullcontext()

    def with_whole_steps(
        self, told: TorchDetection, tuned: Tuned, script: Script, configs: Iterable[Config], ranks: int
    ) -> TorchDetection:
        """Return what was told, and what whole steps with each config take: on the card, and on a rank of a job.

        Args:
            told: What was told, with what steps take.
            tuned: The model, which is about to be called.
            script: What the script does around it.
            configs: What is recomputed.
            ranks: As one of how many ranks the model trains; 0 where it trains by itself.
        """
        model, configs = tuned.reference(), dict.fromkeys(configs)
        assert model is not None, "a model that is called is there"
        assert told.steps is not None, "a whole step is run where others were"
        on_card = reserve(model, tuned, script, configs) if self._card else ()
        of_rank = divide(model, tuned, script, told.steps, configs) if ranks else ()
        is_apart = bool(of_rank) and script.buckets is None and not is_sharded(model)
        return dataclasses.replace(told, on_card=on_card, of_rank=of_rank, is_apart=is_apart)
