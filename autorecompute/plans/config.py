"""A config: what a training run recomputes, in a form that is equal exactly when its effect is."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.plans.plan import Choice, parse_choices

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autorecompute.plans.plan import Plan

HASH_LENGTH = 12


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
        """Read choices: ``["h.*.mlp:checkpoint:5", …]``.

        Raises:
            UsageError: a choice cannot be read, or one site comes in two ways.
        """
        try:
            return cls(frozenset(parse_choices(texts)))
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
        """Twelve hexadecimal digits, the same for equal configs on any machine and in any version."""
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()[:HASH_LENGTH]

    def has(self, plan: Plan) -> bool:
        """Tell whether the plan is on, be it at some of its occurrences only."""
        return self.count_of(plan) > 0

    def count_of(self, plan: Plan) -> int:
        """At how many of its occurrences a plan is on."""
        counts = [self._count(choice, plan.occurrences) for choice in plan.choices]
        return min(counts, default=0)

    def share_of(self, plan: Plan) -> float:
        """At which share of its occurrences a plan is on, from 0 to 1."""
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
