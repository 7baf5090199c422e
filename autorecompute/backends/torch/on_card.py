"""What PyTorch's caching allocator would hold on a card, from whole steps on fake tensors."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from autorecompute.backends.torch.caching_allocator import AllocatorSettings
from autorecompute.backends.torch.extra import OnCard
from autorecompute.backends.torch.fake_step import card_memory
from autorecompute.backends.torch.fakes import FakeSteps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.nn import Module

    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.tuned import Tuned
    from autorecompute.plans import Config


def reserve(model: Module, tuned: Tuned, script: Script, configs: Iterable[Config]) -> tuple[OnCard, ...]:
    """Return what each config takes on a card, with the allocator's settings of the environment.

    A fragment of memory is what many requests in a row leave, so the figures of plans do not add up: each config has a
    whole step of its own.

    Args:
        model: The model.
        tuned: What was found in it, and its switches.
        script: What the script does around the model.
        configs: What is recomputed.

    Raises:
        SetupError: the environment sets what is not modelled.
    """
    settings = AllocatorSettings.of(os.environ)
    steps, told = FakeSteps(model, tuned.found.structure.units, script, tuned.found.values), []
    with steps.prepared(tuned.board) as (_, take):
        for config in configs:
            peak = card_memory(take(config.choices, optimizes=True), settings)
            told.append(OnCard(config=config, allocated_bytes=peak.allocated, reserved_bytes=peak.reserved))
    return tuple(told)
