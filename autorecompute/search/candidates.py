"""The configs that may be worth a trial."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.measurement import Outcome
from autorecompute.memory import covered, undominated
from autorecompute.plans import Choice, Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import Forecast, MemoryModel, Simulated, Simulator
    from autorecompute.plans import Plan, Space


MOST_MIXES = 2**15  # so many mixes are looked at, give or take those that cannot exist
MOST_SETS = 256  # so many sets of plans are kept while plans are added
FEWEST_SETS = 8  # so many sets are mixed even where the blocks are very many
RANGES = 32  # sets that need about the same, as one of so many even ranges has it, compete with each other
FINE_RANGES, OF_EACH = 128, 2  # so many ranges of peaks, and the cheapest of each, have their counts moved
MOVES = 8  # so many counts of a config are moved one after the other, at most
LEAPS = 8  # of more occurrences than this, a count is also moved by such a part of them


def _cheapest(needs: np.ndarray, simulated: Simulated, most: int, ranges: int = RANGES) -> np.ndarray:
    """Return the places of the sets that recompute least among those that need about the same."""
    ranges = min(ranges, most)
    spread = max(float(needs.max() - needs.min()), 1.0)
    within = np.minimum((needs - needs.min()) * ranges / spread, ranges - 1).astype(int)
    order = np.lexsort((simulated.recompute_share, within))
    starts = np.searchsorted(within[order], within[order])
    return np.compress(np.arange(len(order)) - starts < most // ranges, order)


def _cheapest_of_fine_ranges(mixes: np.ndarray, simulator: Simulator) -> np.ndarray:
    simulated = simulator.simulate(mixes)
    places = _cheapest(simulated.peak_bytes, simulated, FINE_RANGES * OF_EACH, FINE_RANGES)
    return np.take(mixes, np.sort(places), axis=0)


def _best(sets: np.ndarray, most: int, simulator: Simulator) -> np.ndarray:
    if len(sets) <= most:
        return sets
    simulated = simulator.simulate(sets)
    kept = [_cheapest(needs, simulated, most // 2) for needs in (simulated.peak_bytes, simulated.stash_bytes)]
    return np.take(sets, np.unique(np.concatenate(kept)), axis=0)


MOST_PLANS = 15
"""So many plans have 32,768 configs, and a proposal looks at all of them. Of more plans, those stay off that change the
simulated peak least."""


class Candidates:
    """Configs as arrays, and what was simulated of each; the simulator is made for :func:`choices_of` the space."""

    def __init__(self, space: Space, simulator: Simulator) -> None:
        self._space, self._choices = space, choices_of(space)
        self._counting = _counting_columns(space.plans, self._choices)
        self._occurrences = np.ones(len(self._choices), dtype=int)
        self._occurrences[list(self._counting)] = list(self._counting.values())
        self.switches = self._mixes(simulator) if self._counting else self._subsets(simulator)
        """Share of its occurrences at which each choice is on, from 0 to 1; a line for each config."""
        self.shares = self.switches - covered(self.switches, space, self._choices)
        """The same without what lies inside of what is made again as a whole."""
        self.simulated = simulator.simulate(self.switches)
        self.places = {self.config(index): index for index in range(len(self))}
        self.choice_shares = simulator.simulate(np.eye(len(self._choices), dtype=np.float32)).recompute_share
        """Kernel time that each switch adds alone, as a share."""
        self.call_seconds = simulator.call_seconds  # that each switch adds beyond its kernels
        self.step_error = simulator.step_error  # of a switch's added time, as a share of a step: of each, or of all

    def __len__(self) -> int:
        return len(self.switches)

    def config(self, index: int) -> Config:
        """Return the config in this place."""
        shares = enumerate(self.switches[index].tolist())
        return Config(frozenset(self._chosen(column, share) for column, share in shares if share))

    def supersets(self, index: int) -> np.ndarray:
        """Return a mask of the configs that have on all that the one in this place has, and as much of it."""
        on = np.flatnonzero(self.switches[index])
        found: np.ndarray = (self.switches[:, on] >= self.switches[index, on]).all(axis=1)
        return found

    def _existing(self, switches: np.ndarray) -> np.ndarray:
        """Return the valid ones: no site is recomputed in two ways, and every choice takes effect."""
        choices = self._choices
        same = np.array([[one.site == other.site and one != other for other in choices] for one in choices], dtype=bool)
        on = (switches > 0).astype(np.float32)
        others = on @ same.reshape(len(choices), len(choices)).astype(np.float32)
        has_nothing = (on > 0) & (switches <= covered(switches, self._space, choices))
        is_one_way = (others * on).max(axis=1, initial=0) == 0
        return np.compress(is_one_way & ~has_nothing.any(axis=1), switches, axis=0)

    def _subsets(self, simulator: Simulator) -> np.ndarray:
        by_plan = _by_plan(_most_telling(self._space, simulator), self._choices)
        chosen = (np.arange(2 ** len(by_plan))[:, None] >> np.arange(len(by_plan))) & 1
        return self._existing(np.unique((chosen @ by_plan.astype(np.int64) > 0).astype(np.float32), axis=0))

    def _mixes(self, simulator: Simulator) -> np.ndarray:
        """Return mixes of plans at counts, without recompute and the presets among them."""
        by_plan = _by_plan(self._space.plans, self._choices).astype(np.float32)
        presets = simulator.matrix([one for one in self._space.presets.values() if self._space.is_mix(one)])
        sets = self._sets(by_plan, simulator)
        counts = self._at_counts(by_plan, np.zeros_like(by_plan))
        steps = max(int(self._occurrences.max(initial=1)) - 1, 1)
        few = _best(sets, max(math.isqrt(MOST_MIXES // steps), FEWEST_SETS), simulator)
        first, rest = (part.reshape(-1, few.shape[1]) for part in np.broadcast_arrays(few[:, None], few[None]))
        found = self._existing(np.concatenate([sets, counts, self._at_counts(first, rest)]))
        moved = self._move_counts(np.unique(found, axis=0), simulator)
        return np.unique(np.concatenate([found, *moved, presets]), axis=0)

    def _move_counts(self, mixes: np.ndarray, simulator: Simulator) -> list[np.ndarray]:
        """Return the cheapest mixes, and what is cheaper than they are with some counts moved."""
        kept = [_cheapest_of_fine_ranges(mixes, simulator)]
        for _ in range(MOVES):
            around = np.unique(np.concatenate([kept[-1], *self._neighbours(kept[-1])]), axis=0)
            found = _cheapest_of_fine_ranges(self._existing(around), simulator)
            if np.array_equal(found, kept[-1]):
                break
            kept.append(found)
        return kept

    def _neighbours(self, mixes: np.ndarray) -> list[np.ndarray]:
        """Return the mixes with the count of one choice moved, by one occurrence or by a leap."""
        found = []
        for column, most in enumerate(self._occurrences.tolist()):
            for by in {1, -1, most // LEAPS, -(most // LEAPS)} - {0}:
                moved = mixes.copy()
                moved[:, column] = (np.rint(moved[:, column] * most) + by) / most
                found.append(moved[(moved[:, column] >= 0) & (moved[:, column] <= 1)])
        return found

    def _sets(self, by_plan: np.ndarray, simulator: Simulator) -> np.ndarray:
        """Return sets of plans that are on at all occurrences: the cheapest of each range of peaks."""
        sets = np.zeros((1, by_plan.shape[1]), dtype=np.float32)
        for plan in by_plan:
            added = self._existing(np.maximum(sets, plan))
            sets = _best(np.unique(np.concatenate([sets, added]), axis=0), MOST_SETS, simulator)
        return sets

    def _at_counts(self, first: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """Return the plans of ``rest`` everywhere, and those of ``first`` at each count of the first occurrences."""
        most = int(self._occurrences.max(initial=1))
        shares = (np.rint(self._occurrences * count / most) / self._occurrences for count in range(1, most))
        parts = [np.maximum(rest, first * share) for share in shares]
        return np.concatenate([*parts, np.maximum(first, rest)], dtype=np.float32, casting="same_kind")

    def _chosen(self, column: int, share: float) -> Choice:
        on = self._choices[column]
        return on if share >= 1 else Choice(on.site, on.option, round(share * self._counting[column]))

    @functools.cached_property
    def full(self) -> int:
        """Return the place of the config with the most switches on."""
        return int(self.switches.sum(axis=1).argmax())


def choices_of(space: Space) -> tuple[Choice, ...]:
    """Return the choices of a space's plans, in a fixed order."""
    return tuple(sorted({choice for plan in space.plans for choice in plan.choices}, key=str))


def _by_plan(plans: Sequence[Plan], choices: Sequence[Choice]) -> np.ndarray:
    rows = [[choice in plan.choices for choice in choices] for plan in plans]
    return np.array(rows, dtype=bool).reshape(len(plans), len(choices))


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


def _counting_columns(plans: Sequence[Plan], choices: Sequence[Choice]) -> dict[int, int]:
    """Return the number of occurrences by the column of each plan that counts and shares no choice."""
    shared = [choice for plan in plans for choice in plan.choices]
    return {
        choices.index(plan.choices[0]): plan.occurrences
        for plan in plans
        if plan.counts and len(plan.choices) == 1 and shared.count(plan.choices[0]) == 1
    }


def sound_space(space: Space, trials: Sequence[Trial]) -> Space:
    """Return the space without the plans that failed alone, and not for want of memory: they would fail in company."""
    outcomes = {trial.config: trial.measurement.outcome for trial in trials}
    failed = {config for config, outcome in outcomes.items() if _blames_config(outcome)}
    return replace(space, plans=tuple(plan for plan in space.plans if Config.of([plan]) not in failed))


def chance_to_work(candidates: Candidates, trials: Sequence[Trial]) -> np.ndarray:
    """Return each candidate's chance to run, by the configs that failed, and not for want of memory.

    A choice that was measured works as far as it was on. Of a config that failed one of its other choices is to blame:
    those that most of such configs have are equally likely to be the one. Where nothing else was on in it, no more than
    what was measured is.
    """
    switches = candidates.switches
    places = [(candidates.places.get(trial.config), trial.measurement.outcome) for trial in trials]
    works = [switches[place] for place, outcome in places if place is not None and outcome.is_measured]
    failed = [place for place, outcome in places if place is not None and _blames_config(outcome)]
    most = np.max([np.zeros(switches.shape[1]), *works], axis=0)
    suspects = switches[failed] > most
    often = suspects.sum(axis=0)
    chance = np.ones(len(candidates))
    for place, own in zip(failed, suspects, strict=True):
        if not own.any():
            chance[candidates.supersets(place)] = 0
            continue
        likely = own & (often == often[own].max())
        chance *= 1 - (switches[:, likely] > most[likely]).mean(axis=1)
    return chance


def _blames_config(outcome: Outcome) -> bool:
    return not outcome.is_measured and not outcome.is_about_memory and outcome is not Outcome.LOST


def predict_frontier(memory: MemoryModel, dims: Mapping[str, int]) -> tuple[Forecast, ...]:
    """Return the forecasts of those configs among all that the search knows, the lowest peak first.

    Raises:
        KeyError: a shape depends on a dimension that is not known.
    """
    candidates = Candidates(memory.space, memory.simulator(dims, choices_of(memory.space)))
    places = undominated(candidates.simulated.peak_bytes, candidates.simulated.recompute_share)
    return tuple(memory.forecast(candidates.config(place), dims) for place in places)
