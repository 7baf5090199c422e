"""Plans, configs of them, the space that they span, and the configs that a command line names.

Knows nothing of torch, processes or backends.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

from autorecompute.errors import UsageError
from autorecompute.files import open_named, shown
from autorecompute.ranges import PRIVATE, AnyBytes, Batch, Bytes, Count, PositiveCount, Ratio

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_TEXT = re.compile(r"([^:]+):([^:]+?)(?::(-1|\d+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """A site that is recomputed.

    Attributes:
        site: A place whose activations can be made again, with all its occurrences: ``Gelu+``, ``h.*.mlp``.
        option: The way to make them again, in the training system's own word.
        count: Number of its occurrences that are meant, counted from the first; ``None`` for all of them.
    """

    site: str
    option: str
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``h.*.mlp:checkpoint``, or ``h.*.mlp:checkpoint:5`` for the first five; a count of -1 means all."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"{shown(text)} is no choice. Write it as SITE:OPTION or SITE:OPTION:COUNT.")
        count = None if match[3] in {None, "-1"} else int(match[3])
        return cls(match[1], match[2], count)

    def __str__(self) -> str:
        return f"{self.site}:{self.option}" + ("" if self.count is None else f":{self.count}")

    def covers(self, other: Choice) -> bool:
        """Tell whether both are about the same site and option, whatever their counts."""
        return (self.site, self.option) == (other.site, other.option)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One choice, or several that only save memory together."""

    choices: Annotated[tuple[Choice, ...], "What the plan switches on, sorted, with all occurrences."]
    label: Annotated[str, "The plan in a few words."]
    occurrences: Annotated[Count, "How many places of the model it covers."]
    counts: Annotated[bool, "Whether it can be switched on for some of them only."] = False
    saving_bytes: Annotated[
        AnyBytes | None, "Saving at the first batch of what forward keeps, not of the peak; ``None`` if unknown."
    ]
    saving: Annotated[str, "The same as an expression in the dimensions of the model's inputs."]
    stated: Annotated[str | None, "The saving as the training system states it, where that is another."] = None
    equal_within: Annotated[
        Ratio,
        "Most by which gradients may differ, relative to their largest: sums come in another order. 0 for not at all.",
    ] = 0.0

    @property
    def id(self) -> str:
        """Return the choices joined by commas; unique among the plans of a model."""
        return ",".join(map(str, self.choices))

    @property
    def option(self) -> str:
        """Return the option of its sites; where that differs, all the words."""
        return "+".join(sorted({choice.option for choice in self.choices}))

    @property
    def sites(self) -> frozenset[str]:
        """Return the places it is about."""
        return frozenset(choice.site for choice in self.choices)

    def chosen(self, count: int | None = None) -> tuple[Choice, ...]:
        """Return its choices at the first ``count`` occurrences; at all of them without a count."""
        if count is None or count >= self.occurrences:
            return self.choices
        return tuple(Choice(choice.site, choice.option, count) for choice in self.choices)


HASH_LENGTH = 12
PERCENT = 100


@dataclass(frozen=True, slots=True)
class Config:
    """The choices that are on. ``Config()`` recomputes nothing.

    Raises:
        ValueError: a site comes with two options or two counts.
    """

    choices: frozenset[Choice] = frozenset()

    def __post_init__(self) -> None:
        if len({choice.site for choice in self.choices}) < len(self.choices):
            raise ValueError("a site can be recomputed in one way only")

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Config:
        """Return the config that switches these plans on at all their occurrences."""
        return cls(frozenset(choice for plan in plans for choice in plan.choices))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Config:
        """Read choices, ``["h.*.mlp:checkpoint:5", …]``; refuse one site in two ways."""
        try:
            return cls(frozenset(map(Choice.parse, texts)))
        except ValueError as error:
            raise UsageError(f"These choices cannot be on together: {error}.") from error

    @property
    def is_none(self) -> bool:
        """Tell whether nothing is recomputed."""
        return not self.choices

    @property
    def texts(self) -> list[str]:
        """Return the choices as :meth:`parse` reads them, in a fixed order."""
        return sorted(map(str, self.choices))

    @property
    def hash(self) -> str:
        """Return twelve hexadecimal digits, the same for equal configs on any machine and in any version."""
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()[:HASH_LENGTH]

    def has(self, plan: Plan) -> bool:
        """Tell whether the plan is on, be it at some of its occurrences only."""
        return self.count_of(plan) > 0

    def count_of(self, plan: Plan) -> int:
        """Return at how many of its occurrences a plan is on."""
        return min((self._count(choice, plan.occurrences) for choice in plan.choices), default=0)

    def share_of(self, plan: Plan) -> float:
        """Return at which share of its occurrences a plan is on, from 0 to 1."""
        return self.count_of(plan) / max(plan.occurrences, 1)

    def without_plan(self, plan: Plan) -> Config:
        """Return this config with all choices of the plan off."""
        return Config(frozenset(on for on in self.choices if not any(on.covers(choice) for choice in plan.choices)))

    def _count(self, choice: Choice, occurrences: int) -> int:
        # A plan without a known number of occurrences is on all the same.
        on = next((on for on in self.choices if on.covers(choice)), None)
        if on is None:
            return 0
        return max(occurrences, 1) if on.count is None else on.count


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One output of an operation that is kept for the backward pass."""

    output: Annotated[Count, "Which output of the operation, from 0."]
    shape: Annotated[tuple[str, ...], "Its dimensions, each a number or an expression in symbolic dimensions."]
    element_bytes: Annotated[Bytes, "Size of an element."]
    saved_bytes: Annotated[int, PRIVATE, "What recomputing saves of each element: all of it, or a part."]
    reuse_frequency: Annotated[Count, "Number of occurrences whose output lies in a buffer that another has left."] = 0

    @property
    def saved_percent(self) -> Annotated[Ratio, "The share of it that is saved."]:
        """Return the share that recomputing saves."""
        return PERCENT * self.saved_bytes / self.element_bytes

    @property
    def saving(self) -> str:
        """Return the bytes that recomputing saves at one occurrence, as an expression."""
        return "*".join([str(self.saved_bytes), *(f"({size})" for size in self.shape)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to make the activations of a cluster again."""

    choice: Annotated[Choice, "What switches it on."]
    activations: Annotated[tuple[Activation, ...], "What is not kept then, in the order of the outputs."]

    @property
    def saving(self) -> str:
        """Return the bytes that it saves at one occurrence, as an expression: the sum over its outputs."""
        return " + ".join(activation.saving for activation in self.activations) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Places of the model that keep alike activations, and can be recomputed alike."""

    occurrences: Annotated[int, "How many places there are."]
    alternatives: Annotated[tuple[Alternative, ...], "Ways to recompute them; the first of several takes effect."]


def saving_of(choice: Choice, clusters: tuple[Cluster, ...]) -> tuple[str, int]:
    """Return the bytes that a choice saves over all its occurrences, as an expression, and how many these are."""
    offered = [
        (cluster.occurrences, alternative.saving)
        for cluster in clusters
        for alternative in cluster.alternatives
        if alternative.choice == choice
    ]
    parts = [f"{occurrences}*({saving})" for occurrences, saving in offered]
    return " + ".join(parts) or "0", sum(occurrences for occurrences, _ in offered)


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The plans of a model as its training system would use them in this environment.

    Attributes:
        plans: Those that can be switched on, largest saving first.
        is_on: True if the training system says that its recompute is on.
        config: The choices that take effect; none where nothing is switched on.
        requested: Number of occurrences that each choice is asked for, -1 for all.
        recomputed: Number of occurrences of each choice that the training system recomputes.
        unknown: Texts that are asked for and not offered.
        problems: Sentences on what is wrong with what is switched on.
        notes: Sentences that a reader of the plans has to know.
        stated_note: Why a stated saving may differ from ours; empty where the system states none.
        worthless: Why there is nothing worth recomputing; empty where there may be.
    """

    plans: tuple[Plan, ...]
    clusters: tuple[Cluster, ...] = ()
    summary: str = ""
    is_on: bool = False
    config: Config = field(default_factory=Config)
    requested: dict[Choice, int] = field(default_factory=dict)
    recomputed: dict[Choice, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    stated_note: str = ""
    worthless: str = ""


FEW_PLANS = 2  # up to so many plans a config is named by what it has, or by what it lacks
SHOWN_DIGITS = 6  # digits of a config's hash that people are shown
NONE, ALL_ON = "none", "all_on"  # the presets that every space has


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A config for each length of a batch.

    Attributes:
        batch: Samples of the batches that it holds for; those with more get the last config.
        ends: Lengths in tokens, in ascending order.
        configs: For each the config of batches that are no longer.
    """

    batch: Batch
    ends: tuple[PositiveCount, ...]
    configs: tuple[Config, ...]

    def __post_init__(self) -> None:
        if not self.ends or len(self.ends) != len(self.configs) or list(self.ends) != sorted(set(self.ends)):
            raise ValueError("has no config for each of some lengths in ascending order")

    @property
    def longest(self) -> int:
        """Return the longest length that was tuned for."""
        return self.ends[-1]

    def config_for(self, batch: int, length: int) -> Config:
        """Return the config of a batch: that of the longest where it has more samples, or is longer than all."""
        place = bisect.bisect_left(self.ends, length) if batch <= self.batch else len(self.ends)
        return self.configs[min(place, len(self.ends) - 1)]


@dataclass(frozen=True, kw_only=True)
class Space:
    """All that can be switched on in one model."""

    plans: Annotated[tuple[Plan, ...], "The plans; where two exclude each other, the earlier one is preferred."]
    own_presets: Annotated[dict[str, Config], "Presets beside ``none`` and ``all_on``."] = field(default_factory=dict)
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
        """Tell whether two choices cannot be on together: one site in two ways, or nothing left for one."""
        if one.site == other.site:
            return one != other
        return self._leaves_nothing(one, other) or self._leaves_nothing(other, one)

    def share(self, config: Config, plan: Plan) -> float:
        """Return at which share of its occurrences a plan makes something again that nothing around it does."""
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
            counts = [(plan, config.count_of(plan)) for plan in on]
            return " and ".join(
                plan.label if count >= plan.occurrences else f"{count} of {plan.occurrences} {plan.label}"
                for plan, count in counts
            )
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


LONGEST_NUMBER = 9
LARGEST_FILE = 2**24  # bytes; a list of all plans of a large model takes a thousandth of that


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
        config = Config()
        for number in map(int, words):
            if not 1 <= number <= len(numbered):
                raise UsageError(f"There is no plan {number}; the summary numbers them from 1 to {len(numbered)}.")
            config = space.with_plan(config, numbered[number - 1])
        return config
    config = space.normalize(_read(Path(text), sorted(named)))
    if strangers := [text for text in config.texts if not space.is_mix(Config.parse([text]))]:
        raise UsageError(f"The model has no plan {strangers[0]}. 'autorecompute plans' lists those it has.")
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
