"""What a training system offers to recompute: plans, and the choices that they are made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from autorecompute.errors import UsageError
from autorecompute.paths import shown
from autorecompute.ranges import AnyBytes, Count

if TYPE_CHECKING:
    from collections.abc import Iterable

_TEXT = re.compile(r"([^:]+):([^:]+?)(?::(-1|\d+))?")


@dataclass(frozen=True, slots=True)
class Choice:
    """A site that is recomputed.

    Attributes:
        site: A place whose activations can be made again, with all its occurrences: ``Gelu+``, ``h.*.mlp``.
        option: How they are made again, in the training system's own word.
        count: At how many of its occurrences, counted from the first; ``None`` for all of them.
    """

    site: str
    option: str
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``h.*.mlp:checkpoint``, or ``h.*.mlp:checkpoint:5`` for the first five; a count of -1 means all.

        Raises:
            UsageError: the text is not of that form.
        """
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
    """One choice, or several that only save memory together.

    Attributes:
        choices: What the plan switches on, sorted, with all occurrences.
        label: The plan in a few words.
        occurrences: How many places of the model it covers.
        counts: Whether it can be switched on for some of them only.
        saving_bytes: Saving at the first batch, ``None`` where a dimension is unknown. It is of what is kept after the
            forward pass, not of the peak: a plan can save more of the peak, nothing, or less than nothing.
        saving: The same as an expression in the dimensions of the model's inputs.
        stated: The saving as the training system states it, where that is another.
    """

    choices: tuple[Choice, ...]
    label: str
    occurrences: Count
    counts: bool = False
    saving_bytes: AnyBytes | None
    saving: str
    stated: str | None = None

    @property
    def id(self) -> str:
        """Return the choices joined by commas; unique among the plans of a model."""
        return ",".join(map(str, self.choices))

    @property
    def option(self) -> str:
        """Return how its sites are recomputed; where that differs, all the words."""
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


def plan_of_id(text: str) -> Plan:
    """Return the plan of this id, of which nothing else is known.

    Raises:
        UsageError: the text is no id of a plan.
    """
    choices = parse_choices(text.split(","))
    label = " with ".join(choice.site for choice in choices)
    return Plan(choices=choices, label=label, occurrences=0, saving_bytes=None, saving="0")


def parse_choices(texts: Iterable[str]) -> tuple[Choice, ...]:
    """Read several choices, sorted and none of them twice.

    Raises:
        UsageError: a text is not of the form of a choice.
    """
    return tuple(sorted({Choice.parse(text) for text in texts}, key=str))
