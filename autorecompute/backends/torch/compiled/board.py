"""Choices switched on and off in a compiled model: each swap compiles it, or finds it in the compiler's caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from autorecompute.backends.torch.compiled.budgets import Budget, value_of
from autorecompute.backends.torch.compiled.checkpoints import choose
from autorecompute.backends.torch.compiled.clock import CLOCK
from autorecompute.backends.torch.options import BUDGET
from autorecompute.backends.torch.switchboard import Effect, Switchboard

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.nn import Module

    from autorecompute.backends.torch.switchboard import Site
    from autorecompute.plans import Choice


class CompiledBoard(Switchboard):
    """All that can be switched in one compiled model.

    Args:
        model: The model as the script wrote it.
        sites: Its sites. That of the budgets is the model itself.
    """

    is_exact = False

    def __init__(self, model: Module, sites: Iterable[Site]) -> None:
        super().__init__(model, sites)
        self._budget = Budget()
        CLOCK.start()

    def set(self, choices: Iterable[Choice]) -> None:
        """Have the next forward pass do what these choices say and nothing else.

        Call it between two steps. What was compiled before is forgotten, and read from the caches where it is there.

        Raises:
            ValueError: The choices make no sense; what was on stays on.
        """
        chosen = frozenset(choices)
        effects = self.resolve(chosen)
        if effects != self.effects:
            self._turn(effects)
        self.choices, self.effects = chosen, effects

    def _turn(self, effects: frozenset[Effect]) -> None:
        budgets = [value_of(effect.option) for effect in effects if effect.option.startswith(BUDGET)]
        options = {effect.path: effect.option for effect in effects if not effect.option.startswith(BUDGET)}
        for path, reference in self._modules.items():
            module = reference()
            if path and module is not None:
                choose(module, options.get(path))
        self._budget.set(budgets[0] if budgets else None)
        torch._dynamo.reset()
        CLOCK.start()  # the reset forgets who listens
