"""The configs that a model is asked about: all that there are, all of the plans that matter most, or mixes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.plans import Choice, Config
from autorecompute.search.mixes import Mixer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.memory import Simulator
    from autorecompute.plans import Plan, Space

MOST_PLANS = 15
"""So many plans have 32,768 configs, and a proposal looks at all of them. Of more plans, those stay off that change the
simulated peak least."""


class Candidates:
    """Configs as arrays, and what was simulated of each.

    Args:
        space: The plans.
        simulator: Made for the choices of :func:`choices_of`.
    """

    def __init__(self, space: Space, simulator: Simulator) -> None:
        self._choices = choices_of(space)
        self._occurrences = _occurrences(space.plans, self._choices)
        self.switches = self._mixes(space, simulator) if self._occurrences else self._subsets(space, simulator)
        """At which share of its occurrences each choice is on, from 0 to 1; a line for each config."""
        self.shares = self.switches - covered(self.switches, space, self._choices)
        """The same without what lies inside of what is made again as a whole."""
        self._words = _as_words(self.switches)
        self.simulated = simulator.simulate(self.switches)
        self.places = {self.config(index): index for index in range(len(self))}
        """Where each config stands."""
        self.choice_shares = simulator.simulate(np.eye(len(self._choices), dtype=np.float32)).recompute_share
        """What each switch adds alone, as a share of the kernels' time."""
        self.call_seconds = simulator.call_seconds
        """What each switch adds beyond its kernels."""
        self.step_error = simulator.step_error
        """How far off what a switch adds may be, as a share of a step: of each, or the same of all."""

    def __len__(self) -> int:
        return len(self.switches)

    def config(self, index: int) -> Config:
        """Return the config in this place."""
        shares = enumerate(self.switches[index].tolist())
        return Config(frozenset(self._chosen(column, share) for column, share in shares if share))

    def supersets(self, index: int) -> np.ndarray:
        """Return which configs have on all that the one in this place has, and as much of it."""
        found: np.ndarray = np.logical_and.reduce([word & word[index] == word[index] for word in self._words])
        for column in self._occurrences:
            found &= self.switches[:, column] >= self.switches[index, column]
        return found

    def _subsets(self, space: Space, simulator: Simulator) -> np.ndarray:
        switches = np.unique(_subsets(_by_plan(_most_telling(space, simulator), self._choices)), axis=0)
        found: np.ndarray = switches[_can_exist(switches, space, self._choices)]
        return found

    def _mixes(self, space: Space, simulator: Simulator) -> np.ndarray:
        def exist(switches: np.ndarray) -> np.ndarray:
            return _can_exist(switches, space, self._choices)

        by_plan = _by_plan(space.plans, self._choices).astype(np.float32)
        occurrences = [self._occurrences.get(column, 1) for column in range(len(self._choices))]
        presets = [self._row(preset) for preset in space.presets.values() if space.is_mix(preset)]
        mixes = Mixer(by_plan, occurrences, simulator, exist).mixes()
        found: np.ndarray = np.unique(np.concatenate([mixes, np.array(presets, dtype=np.float32)]), axis=0)
        return found

    def _row(self, config: Config) -> list[float]:
        counts = {(on.site, on.option): on.count for on in config.choices}
        return [
            0.0 if key not in counts else (counts[key] or self._occurrences.get(at, 1)) / self._occurrences.get(at, 1)
            for at, key in enumerate((choice.site, choice.option) for choice in self._choices)
        ]

    def _chosen(self, column: int, share: float) -> Choice:
        choice = self._choices[column]
        is_part = share < 1
        return Choice(choice.site, choice.option, round(share * self._occurrences[column])) if is_part else choice

    @functools.cached_property
    def full(self) -> int:
        """Return where the config with the most switches on stands."""
        return int(self.switches.sum(axis=1).argmax())


def choices_of(space: Space) -> tuple[Choice, ...]:
    """Return the choices of a space's plans, in a fixed order."""
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
    """Return the choices that are on in each subset of the plans."""
    count = len(by_plan)
    chosen = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    return (chosen @ by_plan.astype(np.int64) > 0).astype(np.float32)


def _occurrences(plans: Sequence[Plan], choices: Sequence[Choice]) -> dict[int, int]:
    """Return how many occurrences there are to choose from, by the columns of plans that count and share no choice."""
    shared = [choice for plan in plans for choice in plan.choices]
    return {
        choices.index(plan.choices[0]): plan.occurrences
        for plan in plans
        if plan.counts and len(plan.choices) == 1 and shared.count(plan.choices[0]) == 1
    }


def _as_words(switches: np.ndarray) -> list[np.ndarray]:
    """64 switches of all configs in each array, a bit for each switch."""
    spare = 64 - switches.shape[1] % 64
    bits = np.pad(switches.astype(bool), ((0, 0), (0, spare)))
    return list(np.packbits(bits, axis=1).view(np.uint64).T.copy())


def _can_exist(switches: np.ndarray, space: Space, choices: Sequence[Choice]) -> np.ndarray:
    """Return which configs exist: no site is recomputed in two ways, and every choice has something left to do."""
    same = np.array([[one.site == other.site and one != other for other in choices] for one in choices], dtype=bool)
    on = (switches > 0).astype(np.float32)
    in_two_ways = ((on @ same.reshape(len(choices), len(choices)).astype(np.float32)) * on).max(axis=1, initial=0) > 0
    has_nothing = (on > 0) & (switches <= covered(switches, space, choices))
    fine: np.ndarray = ~in_two_ways & ~has_nothing.any(axis=1)
    return fine


def covered(switches: np.ndarray, space: Space, choices: Sequence[Choice]) -> np.ndarray:
    """At which share of its occurrences each choice lies inside of what is made again as a whole."""
    covered = np.zeros_like(switches)
    for outer, around in enumerate(choices):
        inside = [at for at, choice in enumerate(choices) if choice.site in space.covers.get(around.site, ())]
        covered[:, inside] = np.maximum(covered[:, inside], switches[:, [outer]])
    most: np.ndarray = np.minimum(covered, switches)
    return most
