"""What a model offers as plans: sites with their options, what covers what, and the configs that have a name."""

from __future__ import annotations

import collections
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends.torch.options import CHECKPOINT, DROP, EVERY_2ND, KEEP_MATMUL, label_of
from autorecompute.backends.torch.savings import Saving
from autorecompute.backends.torch.structure import is_within
from autorecompute.plans import Choice, Config, Plan, Space

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.extra import Steps
    from autorecompute.backends.torch.switchboard import Site, Switchboard

NOT_IN_A_NAME = frozenset(":,")
"""These stand between the parts of a choice, and between choices, wherever one is written."""

FEWEST_UNITS = 2
"""A single block may be all that a model has."""


@dataclass(frozen=True)
class Presets:
    """Makes the configs that people know by name; each is left out where the model has nothing it is about.

    Attributes:
        space: The plans, and what covers what.
        blocks: Names of the sites that are whole blocks.
        attention: Names of the sites that are calls of attention.
        alternating: Names of the blocks of which every second one can be recomputed.
    """

    space: Space
    blocks: Collection[str]
    attention: Collection[str]
    alternating: Collection[str]

    def all(self) -> dict[str, Config]:
        """Return the configs by their names.

        ``blocks`` is what ``gradient_checkpointing_enable()`` does, ``half_of_blocks`` does it to the first half only
        and ``every_2nd_block`` to every second one, ``keep_matmul`` keeps the results of their matrix products,
        ``operators`` makes single operators again and no module, and ``attention`` the inside of attention alone.
        """
        found = {
            "blocks": self._config(self._whole(CHECKPOINT)),
            "half_of_blocks": self._config(self._whole(CHECKPOINT), share=2),
            "every_2nd_block": Config(frozenset(Choice(site, EVERY_2ND) for site in self.alternating)),
            "keep_matmul": self._config(self._whole(KEEP_MATMUL)),
            "operators": self._operators(),
            "attention": self._config(self._attention()),
        }
        return {name: config for name, config in found.items() if not config.is_none}

    def _whole(self, option: str) -> list[Plan]:
        return [plan for plan in self.space.plans if plan.option == option and plan.sites <= set(self.blocks)]

    def _attention(self) -> list[Plan]:
        return [plan for plan in self.space.plans if plan.sites <= set(self.attention)]

    def _operators(self) -> Config:
        config = Config()
        for plan in (*(plan for plan in self.space.plans if plan.option == DROP), *self._attention()):
            config = self.space.with_plan(config, plan)
        return config

    def _config(self, plans: Iterable[Plan], share: int = 1) -> Config:
        config = Config()
        for plan in plans:
            if plan.occurrences >= share:
                config = self.space.with_plan(config, plan, -(-plan.occurrences // share))
        return config


def offered(found: Detected) -> list[Site]:
    """Return the sites that are plans.

    A checkpoint around all blocks of a model is none: it makes them all again at once, and the peak stays. Neither is a
    site whose name cannot be written in a choice.
    """
    return [
        site
        for site in found.sites
        if not NOT_IN_A_NAME.intersection(site.name) and not _holds_all(site, found.structure.units)
    ]


def _holds_all(site: Site, units: Collection[str]) -> bool:
    if site.attention or CHECKPOINT not in site.options or len(units) < FEWEST_UNITS:
        return False
    return any(all(is_within(unit, path) for unit in units) for path in site.occurrences)


def space_of(found: Detected, board: Switchboard, steps: Steps | None) -> Space:
    """Return all that can be switched on in a model.

    Args:
        found: What a probe found in it.
        board: Its switches.
        steps: What steps take; ``None`` where nobody knows.
    """
    sites = offered(found)
    plans = tuple(_plan(site, option, found, steps) for site in sites for option in site.options if option != EVERY_2ND)
    bare = Space(plans=plans, covers=_covers(board, {site.name for site in sites}))
    attention = [site.name for site in sites if site.attention]
    alternating = [site.name for site in sites if EVERY_2ND in site.options]
    presets = Presets(bare, found.blocks, attention, alternating).all()
    return Space(plans=plans, own_presets=presets, covers=bare.covers)


def _plan(site: Site, option: str, found: Detected, steps: Steps | None) -> Plan:
    saving = found.option_savings.get((site.name, option), found.savings[site.name])
    if option == KEEP_MATMUL and steps is not None:
        saving = _seen_saving(site.name, option, steps)
    return Plan(
        choices=(Choice(site.name, option),),
        label=label_of(site.name, option),
        occurrences=len(site.occurrences),
        counts=len(site.occurrences) > 1,
        saving_bytes=round(saving.at(found.batch)),
        saving=_written(saving),
    )


def _seen_saving(site: str, option: str, steps: Steps) -> Saving:
    """Return what the forward passes of a step leave less behind with a choice."""
    seen = next((one for one in steps.options if (one.site, one.option) == (site, option)), None)
    if seen is None:
        return Saving(0, 0)
    forward = {place for place, part in enumerate(steps.parts) if part.phase == "forward"}
    saved = -sum(change for place, change in zip(seen.parts, seen.change, strict=True) if place in forward)
    return Saving(0, saved / steps.batch)


def _written(saving: Saving) -> str:
    """Return the saving as an expression in the batch."""
    parts = [str(round(saving.fixed))] if round(saving.fixed) or not round(saving.per_sample) else []
    parts += [f"{round(saving.per_sample)}*batch"] if round(saving.per_sample) else []
    return " + ".join(parts)


def _covers(board: Switchboard, offered_sites: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the sites of which each site leaves nothing to do, whatever their options."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for (one, _), (other, _) in sorted(board.overlaps()):
        if {one, other} <= set(offered_sites) and one not in found[other]:
            found[one].add(other)
    return {site: tuple(sorted(others)) for site, others in sorted(found.items()) if others}
