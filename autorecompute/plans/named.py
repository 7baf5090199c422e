"""A config as somebody names it on a command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.paths import open_named, shown
from autorecompute.plans.config import Config
from autorecompute.plans.space import ALL_ON

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.plans.plan import Plan
    from autorecompute.plans.space import Space

LONGEST_NUMBER = 9
LARGEST_FILE = 2**24
"""Bytes; a list of all plans of a large model takes a thousandth of that."""


def choose_config(text: str, space: Space, numbered: Sequence[Plan]) -> Config:
    """Return the config of this name.

    Args:
        text: ``all``, a preset's name such as ``none``, numbers of plans like ``1,4``, or a JSON file of choices.
        space: The configs that exist.
        numbered: The plans in the order in which they were numbered from 1.

    Raises:
        UsageError: nothing is called that.
    """
    named = {"all": space.presets[ALL_ON]}
    # A name without its underscore is easier to type.
    named |= {name.replace("_", ""): preset for name, preset in space.presets.items()} | space.presets
    if text in named:
        return named[text]
    words = text.split(",")
    if all(map(_is_number, words)):
        return _pick(words, space, numbered)
    config = space.normalize(_read(Path(text), sorted(named)))
    if not space.is_mix(config):
        unknown = next(text for text in config.texts if not space.is_mix(Config.parse([text])))
        raise UsageError(f"The model has no plan {unknown}. 'autorecompute plans' lists those it has.")
    return config


def _is_number(word: str) -> bool:
    return word.strip().isdecimal() and len(word) <= LONGEST_NUMBER


def _pick(words: Sequence[str], space: Space, numbered: Sequence[Plan]) -> Config:
    config = Config()
    for number in map(int, words):
        if not 1 <= number <= len(numbered):
            raise UsageError(f"There is no plan {number}; the summary numbers them from 1 to {len(numbered)}.")
        config = space.with_plan(config, numbered[number - 1])
    return config


def _read(file: Path, names: Sequence[str]) -> Config:
    forms = f"Give {', '.join(names)}, numbers of plans like 1,4, or a JSON file."
    with open_named(file, forms) as stream:
        content = stream.read(LARGEST_FILE)
    try:
        texts = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{shown(file)} names no config, and is no JSON file of plans. {forms}") from error
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{shown(file)} is no JSON array of strings like 'h.*.mlp:checkpoint'.")
    return Config.parse(texts)
