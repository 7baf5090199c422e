"""The configs that exist for one training graph: its plans, ORT's presets, and their names in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autorecompute.plans.config import Config, Level
from autorecompute.plans.plan import Option, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW_PLANS = 2
"""Up to so many plans a config is named by what it has, or by what it lacks."""

SHOWN_DIGITS = 6
"""Digits of a config's hash that people are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All that can be switched on in one graph.

    Attributes:
        plans: The plans ORT finds when it ignores layer boundaries, largest stated saving first.
        layer_plans: The plans it finds within the boundaries of transformer layers; the levels switch these on.
    """

    plans: tuple[Plan, ...]
    layer_plans: tuple[Plan, ...] = field(default=())

    @property
    def has_layer_boundaries(self) -> bool:
        """Whether looking at layer boundaries changes any plan; ORT finds none in post-LN models."""
        return _signature(self.plans) != _signature(self.layer_plans)

    @property
    def all_on(self) -> Config:
        """Every plan on; where a subgraph has both options, the one that saves all of it."""
        config = Config()
        for plan in sorted(self.plans, key=lambda plan: plan.option, reverse=True):
            config = config.with_plan(plan)
        return config

    def presets(self) -> dict[str, Config]:
        """What a user could switch on without measuring, by name; equal presets are equal configs."""
        return {
            "none": Config(),
            "level_1": self.canonical(Config(level=Level.LAYERWISE)),
            "level_2": self.canonical(Config(level=Level.LAYERWISE_WITH_COMPROMISE)),
            "all_on": self.all_on,
        }

    def canonical(self, config: Config) -> Config:
        """The same config in the form that has one hash: a level without boundaries is just its plans."""
        if config.level is Level.CHOSEN or self.has_layer_boundaries:
            return config
        if config.level is Level.LAYERWISE_WITH_COMPROMISE:
            return self.all_on
        return Config.of(plan for plan in self.plans if plan.option is Option.RECOMPUTE)

    def plans_of(self, config: Config) -> tuple[Plan, ...]:
        """The plans that the config switches on."""
        return tuple(plan for plan in self.plans if config.has(plan))

    def describe(self, config: Config) -> str:
        """The config in a few words: ``none``, ``all but Gelu+``, ``8 of 13 plans (3f2a1c)``.

        Where words do not tell one config from another, the first digits of its hash do.
        """
        if config.level is not Level.CHOSEN:
            return f"level {int(config.level)}"
        if config.is_none:
            return "none"
        on = self.plans_of(config)
        off = [plan for plan in self.plans if plan not in on and self.all_on.has(plan)]
        if config == self.all_on:
            return "all plans"
        if on and len(on) <= FEW_PLANS:
            return " and ".join(plan.name for plan in on)
        if len(off) <= FEW_PLANS:
            return "all but " + " and ".join(plan.name for plan in off)
        return f"{len(on)} of {len(self.plans)} plans ({config.hash[:SHOWN_DIGITS]})"


def _signature(plans: Sequence[Plan]) -> set[tuple[str, int]]:
    # ORT's stated saving of a plan with several outputs varies between runs: the frequency is what tells plans apart.
    return {(plan.key, plan.frequency) for plan in plans}
