"""The configs that a model is asked about: all that there are, or all of the plans that matter most."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.plans import Choice, Config

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.memory import Simulator
    from autorecompute.plans import Plan, Space

MOST_PLANS = 15
"""So many plans have 32,768 configs, and a proposal looks at all of them. Of more plans, those stay off that change the
simulated peak least."""

MOST_CONFIGS = 2**MOST_PLANS
"""Of plans that count no more counts are looked at than make so many configs, the steps between them being even."""


class Candidates:
    """Configs as arrays, and what was simulated of each.

    Args:
        space: The plans.
        simulator: Made for the choices of :func:`choices_of`.
    """

    def __init__(self, space: Space, simulator: Simulator) -> None:
        self._choices = choices_of(space)
        plans = _most_telling(space, simulator)
        switches = np.unique(_subsets(_by_plan(plans, self._choices)), axis=0)
        self._occurrences = _occurrences(plans, self._choices)
        self.switches = _with_counts(switches[_can_exist(switches, space, self._choices)], self._occurrences)
        """At which share of its occurrences each choice is on, from 0 to 1; a line for each config."""
        self._words = _as_words(self.switches)
        self.simulated = simulator.simulate(self.switches)
        self.places = {self.config(index): index for index in range(len(self))}
        """Where each config stands."""
        self.choice_shares = simulator.simulate(np.eye(len(self._choices), dtype=np.float32)).recompute_share
        """What each switch adds alone, as a share of the kernels' time."""

    def __len__(self) -> int:
        return len(self.switches)

    def config(self, index: int) -> Config:
        """The config in this place."""
        shares = enumerate(self.switches[index].tolist())
        return Config(frozenset(self._chosen(column, share) for column, share in shares if share))

    def supersets(self, index: int) -> np.ndarray:
        """Which configs have on all that the one in this place has, and as much of it."""
        found: np.ndarray = np.logical_and.reduce([word & word[index] == word[index] for word in self._words])
        for column in self._occurrences:
            found &= self.switches[:, column] >= self.switches[index, column]
        return found

    def _chosen(self, column: int, share: float) -> Choice:
        choice = self._choices[column]
        is_part = share < 1
        return Choice(choice.site, choice.option, round(share * self._occurrences[column])) if is_part else choice

    @functools.cached_property
    def full(self) -> int:
        """Where the config with the most switches on stands."""
        return int(self.switches.sum(axis=1).argmax())


def choices_of(space: Space) -> tuple[Choice, ...]:
    """The choices of a space's plans, in a fixed order."""
    return tuple(sorted({choice for plan in space.plans for choice in plan.choices}, key=str))


def _by_plan(plans: Sequence[Plan], choices: Sequence[Choice]) -> np.ndarray:
    table = [[choice in plan.choices for choice in choices] for plan in plans]
    return np.array(table, dtype=bool).reshape(len(plans), len(choices))


def _most_telling(space: Space, simulator: Simulator) -> list[Plan]:
    if len(space.plans) <= MOST_PLANS:
        return list(space.plans)
    cases = [Config(), space.all_on]
    cases += [case for plan in space.plans for case in (Config.of([plan]), space.all_on.without_plan(plan))]
    none, full, *others = simulator.simulate(simulator.matrix(cases)).peak_bytes
    effects = {
        plan.id: max(abs(none - alone), abs(full - left_out))
        for plan, alone, left_out in zip(space.plans, others[::2], others[1::2], strict=True)
    }
    ranked = sorted(space.plans, key=lambda plan: effects[plan.id], reverse=True)
    return ranked[:MOST_PLANS]


def _subsets(by_plan: np.ndarray) -> np.ndarray:
    """The choices that are on in each subset of the plans."""
    count = len(by_plan)
    chosen = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    return (chosen @ by_plan.astype(np.int64) > 0).astype(np.float32)


def _occurrences(plans: Sequence[Plan], choices: Sequence[Choice]) -> dict[int, int]:
    """How many occurrences there are to choose from, by the columns of plans that count and share no choice."""
    shared = [choice for plan in plans for choice in plan.choices]
    return {
        choices.index(plan.choices[0]): plan.occurrences
        for plan in plans
        if plan.counts and len(plan.choices) == 1 and shared.count(plan.choices[0]) == 1
    }


def _with_counts(switches: np.ndarray, occurrences: dict[int, int]) -> np.ndarray:
    """The configs, and those in which plans that count are on at some of their occurrences only."""
    for column, most in occurrences.items():
        on = switches[switches[:, column] > 0]
        steps = min(most, 1 + (MOST_CONFIGS - len(switches)) // max(len(on), 1))
        parts = [switches]
        for count in sorted({round(most * step / steps) for step in range(1, steps)} - {0, most}):
            part = on.copy()
            part[:, column] = count / most
            parts.append(part)
        switches = np.concatenate(parts)
    return switches


def _as_words(switches: np.ndarray) -> list[np.ndarray]:
    """64 switches of all configs in each array, a bit for each switch."""
    spare = 64 - switches.shape[1] % 64
    bits = np.pad(switches.astype(bool), ((0, 0), (0, spare)))
    return list(np.packbits(bits, axis=1).view(np.uint64).T.copy())


def _can_exist(switches: np.ndarray, space: Space, choices: Sequence[Choice]) -> np.ndarray:
    """Which configs exist: none of their choices exclude each other."""
    conflicts = np.array([[space.excludes(one, other) for other in choices] for one in choices], dtype=np.float32)
    together = switches @ conflicts.reshape(len(choices), len(choices))
    fine: np.ndarray = (together * switches).max(axis=1, initial=0) == 0
    return fine
