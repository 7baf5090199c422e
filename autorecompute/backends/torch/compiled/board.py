"""Choices switched on and off in a compiled model: each swap compiles it, or finds it in the compiler's caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from autorecompute.backends.torch.compiled.budgets import Asked, value_of
from autorecompute.backends.torch.compiled.checkpoints import choose
from autorecompute.backends.torch.compiled.clock import CLOCK
from autorecompute.backends.torch.compiled.clusters import groups_of
from autorecompute.backends.torch.compiled.marks import Tags
from autorecompute.backends.torch.options import BUDGET, GRAPH, RECOMPUTE, kept_cluster
from autorecompute.backends.torch.structure import is_within, structure_of
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
        self._asked, self._groups = Asked(), groups_of(structure_of(model))
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

    def resolve(self, choices: Iterable[Choice]) -> frozenset[Effect]:
        """Return what the choices come to.

        A budget decides about the whole graph, and a checkpoint about all that is in its modules.

        Raises:
            ValueError: A choice names an unknown site or option, or two choices are for one site.
        """
        chosen = tuple(choices)
        clusters = {choice for choice in chosen if choice.option == RECOMPUTE}
        others = super().resolve(choice for choice in chosen if choice not in clusters)
        found = super().resolve(clusters)
        is_decided = any(effect.site == GRAPH for effect in others)
        whole = [on.site for on in chosen if on not in clusters and self._is_everywhere(on)]
        return others | {
            effect for effect in found if not is_decided and not any(is_within(effect.site, group) for group in whole)
        }

    def _is_everywhere(self, choice: Choice) -> bool:
        return len(self.paths(choice)) == len(self.sites[choice.site].occurrences)

    def _turn(self, effects: frozenset[Effect]) -> None:
        budgets = [value_of(effect.option) for effect in effects if effect.option.startswith(BUDGET)]
        options = {effect.path: effect.option for effect in effects if effect.path}
        for path, reference in self._modules.items():
            module = reference()
            if path and module is not None:
                choose(module, options.get(path))
        self._asked.set(budgets[0] if budgets else None, self._tags(effects))
        torch._dynamo.reset()
        CLOCK.start()  # the reset forgets who listens

    def _tags(self, effects: Iterable[Effect]) -> Tags:
        named = {effect: kept_cluster(effect.site, effect.option) for effect in effects}
        return Tags(
            recomputed=frozenset(effect.site for effect in named if effect.option == RECOMPUTE),
            kept=frozenset(cluster for effect, cluster in named.items() if cluster and not effect.path),
            spared=frozenset(cluster for effect, cluster in named.items() if cluster and effect.path),
            groups=self._groups,
        )
