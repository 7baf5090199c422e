"""How ORT writes recompute plans, ``subgraph:option:count``, and which of our choices and configs they are.

The count is always ``-1``: in ORT 1.17 to 1.19 a plan is on for all its occurrences or left out, whatever is asked.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.plans import Choice, Config, Plan

if TYPE_CHECKING:
    from collections.abc import Iterable

ALL_OCCURRENCES = -1
RECOMPUTE, COMPROMISE = "1", "2"
"""ORT's options: a subgraph is recomputed whole, or up to the cast that halves what is kept."""

LAYERS = "transformer layers"
"""The site of ORT's levels, which choose the plans within transformer layers themselves."""

_ROW = re.compile(r"([^:]+):([12]):(-1|\d+)")


class Level(enum.IntEnum):
    """ORT's ``ORTMODULE_MEMORY_OPT_LEVEL``: plans chosen one by one, or all of them within each transformer layer."""

    CHOSEN = 0
    LAYERWISE = 1
    LAYERWISE_WITH_COMPROMISE = 2


def config_of_level(level: Level) -> Config:
    """Return the config that leaves the choice to one of ORT's levels; none for level 0."""
    return Config() if level is Level.CHOSEN else Config(frozenset({Choice(LAYERS, str(int(level)))}))


def level_of(config: Config) -> Level:
    """Return the level that a config stands for."""
    return next((Level(int(on.option)) for on in config.choices if on.site == LAYERS), Level.CHOSEN)


def rows_of(config: Config) -> list[str]:
    """Return the plans of a config as ORT reads them, in a fixed order; none for a level."""
    return sorted(write_row(on) for on in config.choices if on.site != LAYERS)


def write_row(choice: Choice, count: int = ALL_OCCURRENCES) -> str:
    """``Gelu+:1:-1``."""
    return f"{choice.site}:{choice.option}:{count}"


def read_row(text: str) -> Choice:
    """Read ``Gelu+:1:-1``.

    Raises:
        UsageError: the text is not of that form, or asks for a count that ORT cannot keep.
    """
    choice, count = read_request(text)
    if count != ALL_OCCURRENCES:
        raise UsageError(
            f"'{text}' is no recompute plan that ORT can keep: it takes all occurrences or none. Write -1."
        )
    return choice


def read_request(text: str) -> tuple[Choice, int]:
    """Read ``Gelu+:1:2`` as users write it: the choice, and how many occurrences it asks for, -1 for all.

    Raises:
        UsageError: the text is not of that form.
    """
    match = _ROW.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"'{text}' is no recompute plan. A plan is written like Gelu+:1:-1.")
    return Choice(match[1], match[2]), int(match[3])


def make_plan(key: str, *, occurrences: int, saving_bytes: int | None, saving: str, stated: str | None = None) -> Plan:
    """Return the plan that ORT has this key for: rows joined by commas."""
    choices = tuple(sorted({read_row(text) for text in key.split(",")}, key=str))
    return Plan(
        choices=choices,
        label=_label(choices),
        occurrences=occurrences,
        saving_bytes=saving_bytes,
        saving=saving,
        stated=stated,
    )


def option_of(plan: Plan) -> str:
    """Return the strongest compromise among the choices of a plan."""
    return max(choice.option for choice in plan.choices)


def presets_of(plans: Iterable[Plan], levels: Iterable[Level], *, has_boundaries: bool) -> dict[str, Config]:
    """ORT's levels. Without boundaries of layers a level is just its plans, and the second one is all of them.

    Args:
        plans: All there are.
        levels: Those that the installed version has.
        has_boundaries: Whether ORT finds boundaries of layers.
    """
    if has_boundaries:
        return {f"level_{int(level)}": config_of_level(level) for level in levels if level is not Level.CHOSEN}
    whole = [plan for plan in plans if option_of(plan) == RECOMPUTE]
    every = {choice.site: choice for plan in plans for choice in plan.choices}
    every |= {choice.site: choice for plan in whole for choice in plan.choices}
    return {"level_1": Config.of(whole), "level_2": Config(frozenset(every.values()))}


def _label(choices: tuple[Choice, ...]) -> str:
    subgraphs = " with ".join(choice.site for choice in choices)
    is_compromise = any(choice.option == COMPROMISE for choice in choices)
    return f"{subgraphs} (compromise)" if is_compromise else subgraphs
