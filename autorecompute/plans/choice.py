"""A config as somebody names it on a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.plans.config import Config, Level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.plans.plan import Plan
    from autorecompute.plans.space import Space

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
    config = _pick(words, numbered) if all(word.strip().isdecimal() for word in words) else _read(Path(text))
    unknown = config.rows - {row for plan in space.plans for row in plan.rows}
    if unknown:
        raise UsageError(f"The graph has no plan {min(unknown)}. 'autorecompute plans' lists those it has.")
    return config


def _pick(words: Sequence[str], numbered: Sequence[Plan]) -> Config:
    config = Config()
    for number in map(int, words):
        if not 1 <= number <= len(numbered):
            raise UsageError(f"There is no plan {number}; the summary numbers them from 1 to {len(numbered)}.")
        config = config.with_plan(numbered[number - 1])
    return config


def _read(file: Path) -> Config:
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"'{file}' names no config, and cannot be read as a file of plans: {reason}. Give all, none, level1, "
            "level2, numbers of plans like 1,4, or a JSON file."
        ) from error
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UsageError(f"{file} is no JSON array of strings like 'Gelu+:1:-1'.")
    return Config.from_rows(rows)
