"""The machine that fake tensors stand for: a card by its name, with its kernels and its allocator, or this one."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from autorecompute.backends.torch.card_kernels import CardKernels
from autorecompute.backends.torch.cards import CARDS, machine_of
from autorecompute.backends.torch.on_card import reserve
from autorecompute.backends.torch.speeds import MeasuredSpeeds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.torch.extra import OnCard
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
        """How fast it is."""
        return CARDS[self._card] if self._measured is None else self._measured

    @property
    def machine(self) -> Machine:
        """The same as a record; of this machine, with the types of numbers whose speed was asked for."""
        return machine_of(self._card) if self._measured is None else self._measured.machine

    def kernels(self, optimizers: Sequence[Optimizer]) -> AbstractContextManager[None]:
        """Have operators take a card's kernels: plans and steps are then those that it would have."""
        return CardKernels(CARDS[self._card].capability).active(optimizers) if self._card else contextlib.nullcontext()

    def reserve(self, model: Module, tuned: Tuned, script: Script, configs: Iterable[Config]) -> tuple[OnCard, ...]:
        """What each config takes on a card; nothing for this machine."""
        return reserve(model, tuned, script, configs) if self._card else ()
