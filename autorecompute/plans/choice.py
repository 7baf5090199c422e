"""A config as somebody names it on a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.paths import open_named, shown
from autorecompute.plans.config import Config, Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.plans.plan import Plan
    from autorecompute.plans.space import Space

FORMS = "Give all, none, level1, level2, numbers of plans like 1,4, or a JSON file."
LONGEST_NUMBER = 9
LARGEST_FILE = 2**24
"""Bytes; a list of all plans of a large model takes a thousandth of that."""

_LEVELS = {"level1": Level.LAYERWISE, "level2": Level.LAYERWISE_WITH_COMPROMISE}


def choose_config(text: str, space: Space, numbered: Sequence[Plan]) -> Config:
    """The config of this name.

    Args:
        text: ``none``, ``all``, ``level1``, ``level2``, numbers of plans like ``1,4``, or a JSON file of rows.
        space: The configs that exist.
        numbered: The plans in the order in which they were numbered from 1.

    Raises:
        UsageError: nothing is called that.
    """
    if text in _LEVELS:
        return space.canonical(Config(level=_LEVELS[text]))
    if text in {"all", "none"}:
        return space.all_on if text == "all" else Config()
    words = text.split(",")
    config = _pick(words, numbered) if all(map(_is_number, words)) else _read(Path(text))
    unknown = config.rows - {row for plan in space.plans for row in plan.rows}
    if unknown:
        raise UsageError(f"The graph has no plan {min(unknown)}. 'autorecompute plans' lists those it has.")
    return config


def _is_number(word: str) -> bool:
    return word.strip().isdecimal() and len(word) <= LONGEST_NUMBER


def _pick(words: Sequence[str], numbered: Sequence[Plan]) -> Config:
    config = Config()
    for number in map(int, words):
        if not 1 <= number <= len(numbered):
            raise UsageError(f"There is no plan {number}; the summary numbers them from 1 to {len(numbered)}.")
        config = config.with_plan(numbered[number - 1])
    return config


def _read(file: Path) -> Config:
    with open_named(file, FORMS) as stream:
        content = stream.read(LARGEST_FILE)
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown(file)} names no config, and is no JSON file of plans. {FORMS}") from error
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UsageError(f"{shown(file)} is no JSON array of strings like 'Gelu+:1:-1'.")
    return Config.from_rows(rows)
