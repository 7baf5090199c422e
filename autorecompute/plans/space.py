"""The space of configs, and the configs that a command line names."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from autorecompute.errors import UsageError
from autorecompute.files import open_named, shown
from autorecompute.plans.plan import Choice, Config, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence


FEW_PLANS = 2
"""Up to so many plans a config is named by what it has, or by what it lacks."""

SHOWN_DIGITS = 6
"""Digits of a config's hash that people are shown."""

NONE, ALL_ON = "none", "all_on"
"""The presets that every space has."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """All that can be switched on in one model."""

    plans: Annotated[
        tuple[Plan, ...], "What can be switched on; where two exclude each other, the earlier one is preferred."
    ]
    own_presets: Annotated[
        dict[str, Config], "The training system's presets beside ``none`` and ``all_on``, by name."
    ] = field(default_factory=dict)
    covers: Annotated[
        dict[str, tuple[str, ...]],
        "The sites that a site makes again along with itself, such as the parts of a module. Occurrences are counted "
        "from the first on both sides: 5 of 12 blocks cover the first 5 of their 12 MLPs.",
    ] = field(default_factory=dict)

    @property
    def all_on(self) -> Config:
        """Return every plan on, as far as they do not exclude each other."""
        config = Config()
        for plan in reversed(self.plans):
            config = self.with_plan(config, plan)
        return config

    @property
    def presets(self) -> dict[str, Config]:
        """Return the presets that need no measurement, by name; equal presets are equal configs."""
        return {NONE: Config(), **self.own_presets, ALL_ON: self.all_on}

    @property
    def opaque_presets(self) -> dict[str, Config]:
        """Return the presets that are no mix of plans: the training system alone knows what they do."""
        return {name: config for name, config in self.own_presets.items() if not self.is_mix(config)}

    def excludes(self, one: Choice, other: Choice) -> bool:
        """Tell whether two choices cannot be on together.

        One site in two ways, or nothing left for one of them to do.
        """
        if one.site == other.site:
            return one != other
        return self._leaves_nothing(one, other) or self._leaves_nothing(other, one)

    def share(self, config: Config, plan: Plan) -> float:
        """Return at which share of its occurrences a plan makes something again, from 0 to 1.

        What lies inside of what is made again as a whole does not count.
        """
        around = [on for on in config.choices if plan.sites & set(self.covers.get(on.site, ()))]
        return max(config.share_of(plan) - max(map(self._share, around), default=0.0), 0.0)

    def is_mix(self, config: Config) -> bool:
        """Tell whether the config is made of plans, rather than an opaque preset."""
        known = {(choice.site, choice.option) for plan in self.plans for choice in plan.choices}
        return all((on.site, on.option) in known for on in config.choices)

    def with_plan(self, config: Config, plan: Plan, count: int | None = None) -> Config:
        """Return the config with the plan on as well, at ``count`` of its occurrences or at all.

        What cannot be on beside it gives way. Beside 5 of 12 blocks all their MLPs can be switched on, and mean those
        of the other 7.
        """
        added = plan.chosen(count)
        kept = (on for on in config.choices if not any(self.excludes(on, choice) for choice in added))
        return Config(frozenset((*kept, *added)))

    def normalize(self, config: Config) -> Config:
        """Return the same config in the form that has one hash: no count of 0, none where it means all occurrences."""
        occurrences = {choice: plan.occurrences for plan in self.plans for choice in plan.choices}
        return Config(
            frozenset(
                Choice(on.site, on.option) if on.count == occurrences.get(Choice(on.site, on.option)) else on
                for on in config.choices
                if on.count != 0
            )
        )

    def plans_of(self, config: Config) -> tuple[Plan, ...]:
        """Return the plans that the config switches on."""
        return tuple(plan for plan in self.plans if config.has(plan))

    def describe(self, config: Config) -> str:
        """Return the config in a few words: ``none``, ``all but Gelu+``, ``8 of 13 plans (3f2a1c)``.

        Where words do not tell one config from another, the first digits of its hash do.
        """
        if config.is_none:
            return NONE
        for name, preset in self.opaque_presets.items():
            if config == preset:
                return name.replace("_", " ")
        all_on, on = self.all_on, self.plans_of(config)
        if config == all_on and (len(on) > FEW_PLANS or len(on) == len(self.plans)):
            return "all plans"
        if on and len(on) <= FEW_PLANS:
            return " and ".join(_describe_plan(plan, config) for plan in on)
        off = [plan for plan in self.plans if plan not in on and all_on.has(plan)]
        if config.choices <= all_on.choices and off and len(off) <= FEW_PLANS:
            return "all but " + " and ".join(plan.label for plan in off)
        return f"{len(on)} of {len(self.plans)} plans ({config.hash[:SHOWN_DIGITS]})"

    def _leaves_nothing(self, outer: Choice, inner: Choice) -> bool:
        return inner.site in self.covers.get(outer.site, ()) and self._share(inner) <= self._share(outer)

    def _share(self, choice: Choice) -> float:
        occurrences = self._occurrences.get((choice.site, choice.option), 1)
        return 1.0 if choice.count is None else choice.count / occurrences

    @functools.cached_property
    def _occurrences(self) -> dict[tuple[str, str], int]:
        return {(on.site, on.option): max(plan.occurrences, 1) for plan in self.plans for on in plan.choices}


def _describe_plan(plan: Plan, config: Config) -> str:
    count = config.count_of(plan)
    return plan.label if count >= plan.occurrences else f"{count} of {plan.occurrences} {plan.label}"


LONGEST_NUMBER = 9
LARGEST_FILE = 2**24
"""Bytes; a list of all plans of a large model takes a thousandth of that."""


def choose_config(text: str, space: Space, numbered: Sequence[Plan]) -> Config:
    """Return the config of this name.

    That is ``all``, a preset like ``none``, numbers of plans like ``1,4``, counted from 1, or a JSON file of choices.

    Raises:
        UsageError: nothing is called that.
    """
    named = {"all": space.presets[ALL_ON]}
    # A name without its underscore is easier to type.
    named |= {name.replace("_", ""): preset for name, preset in space.presets.items()} | space.presets
    if text in named:
        return named[text]
    words = text.split(",")
    if all(word.strip().isdecimal() and len(word) <= LONGEST_NUMBER for word in words):
        return _pick(words, space, numbered)
    config = space.normalize(_read(Path(text), sorted(named)))
    if strangers := [text for text in config.texts if not space.is_mix(Config.parse([text]))]:
        raise UsageError(f"The model has no plan {strangers[0]}. 'autorecompute plans' lists those it has.")
    return config


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
