"""Who is compared: a maker for each searcher, from a table, a limit, a budget and a seed."""

from __future__ import annotations

import itertools

import numpy as np

from autorecompute.plans import Config
from autorecompute.plans.savings import evaluate
from autorecompute.search import GreedySearcher, OptunaSearcher, Proposal
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.search.sampling import SAMPLERS

OURS = "model"
"""The one that the goals are about."""

BY_HAND = ("blocks", "keep_matmul")
"""The presets whose blocks people count."""


class Presets:
    """What a user can switch on without choosing: ORT's levels and all plans."""

    def __init__(self, space):
        self._presets = list(dict.fromkeys(space.presets.values()))

    def propose(self, trials):
        """The next preset."""
        tried = {trial.config for trial in trials}
        configs = (config for config in self._presets if config not in tried)
        return next((Proposal(config=config, reason="preset") for config in configs), None)


class Knapsack:
    """Believes the stated savings: the cheapest sets of plans that should save enough, and then more and more.

    Among sets that state to save as much, the one that recomputes the fewest nodes is the cheapest. The presets come
    first, as everywhere.
    """

    def __init__(self, space, dims, limit_bytes):
        self._presets, self._limit_bytes = Presets(space), limit_bytes
        self._front = _cheapest_sets(space, dims)

    def propose(self, trials):
        """The next set, from the one on that should save what none is over the limit."""
        if (preset := self._presets.propose(trials)) is not None:
            return preset
        tried = {trial.config for trial in trials}
        peak_bytes = next(trial.measurement.peak_bytes for trial in trials if trial.config.is_none)
        enough = (config for saving, config in self._front if saving >= peak_bytes - self._limit_bytes)
        untried = (config for config in enough if config not in tried)
        return next((Proposal(config=config, reason="stated savings") for config in untried), None)


def _cheapest_sets(space, dims):
    """Each set of plans that no cheaper one states to save as much as, with its saving, the least saving first."""
    savings = np.array([evaluate(plan.saving, dims) or 0 for plan in space.plans])
    costs = np.array([plan.occurrences for plan in space.plans])
    choices = np.array(list(itertools.product((0, 1), repeat=len(savings))), dtype=int)
    saved, found = choices @ savings, []
    for index in np.lexsort((-saved, choices @ costs)):
        if not found or saved[index] > found[-1][0]:
            plans = (plan for plan, is_on in zip(space.plans, choices[index], strict=True) if is_on)
            found.append((saved[index], Config.of(plans)))
    return found


class Bisection:
    """What an engineer does by hand: all blocks, then as few as fit, by halves; then the same with products kept."""

    def __init__(self, space, limit_bytes):
        self._limit_bytes = limit_bytes
        presets = (space.own_presets.get(name) for name in BY_HAND)
        self._plans = [plan for preset in presets if preset for plan in space.plans_of(preset)]

    def propose(self, trials):
        """The next count that tells."""
        tried = {trial.config: trial.measurement.peak_bytes for trial in trials}
        configs = (config for config in self._bisect(tried) if config not in tried)
        return next((Proposal(config=config, reason="by halves") for config in configs), None)

    def _bisect(self, tried):
        yield Config()
        for plan in self._plans:
            low, high = 0, plan.occurrences
            yield (config := Config(frozenset(plan.chosen(high))))
            while high - low > 1 and tried.get(config, 0) <= self._limit_bytes:
                middle = (low + high) // 2
                yield (half := Config(frozenset(plan.chosen(middle))))
                low, high = (low, middle) if tried.get(half, 0) <= self._limit_bytes else (middle, high)


class StashKnapsack:
    """Believes what is simulated to be kept for the backward: the cheapest that keep so much less, and then less."""

    def __init__(self, table, limit_bytes):
        self._presets, self._limit_bytes = Presets(table.space), limit_bytes
        candidates = table.candidates
        kept, work = candidates.simulated.stash_bytes, candidates.simulated.recompute_share
        self._none, self._front = float(kept.max()), []
        places = sorted(candidates.places[config] for config in table.recordings if config in candidates.places)
        for place in sorted(places, key=lambda place: (work[place], kept[place])):
            if not self._front or kept[place] < self._front[-1][0]:
                self._front.append((float(kept[place]), candidates.config(place)))

    def propose(self, trials):
        """The next config, from the one on that should keep what the limit leaves."""
        if (preset := self._presets.propose(trials)) is not None:
            return preset
        tried = {trial.config for trial in trials}
        peak_bytes = next(trial.measurement.peak_bytes for trial in trials if trial.config.is_none)
        enough = (config for kept, config in self._front if self._none - kept >= peak_bytes - self._limit_bytes)
        untried = (config for config in enough if config not in tried)
        return next((Proposal(config=config, reason="kept bytes") for config in untried), None)


def _optuna(name):
    def make(table, limit_bytes, budget, seed):
        del budget
        return OptunaSearcher(table.space, limit_bytes=limit_bytes, sampler=SAMPLERS[name], seed=seed)

    return make


OPTUNAS = {f"optuna {name}": _optuna(name) for name in SAMPLERS}


class Sampled:
    """The own search where only a sample was recorded: the rest it takes for what others measure."""

    def __init__(self, searcher, missing):
        self._searcher, self._missing = searcher, missing
        self.expect_steps = searcher.expect_steps

    def propose(self, trials):
        """The recorded config that is most worth a trial."""
        return self._searcher.propose(trials, self._missing)


def _model(table, limit_bytes, *_):
    searcher = ModelSearcher(table.space, limit_bytes=limit_bytes, memory=table.memory, dims=table.dims)
    return Sampled(searcher, table.missing) if table.plain["is_sampled"] else searcher


SEARCHERS = {
    "model": _model,
    "greedy": lambda table, limit_bytes, budget, _: GreedySearcher(table.space, budget=budget, limit_bytes=limit_bytes),
    **OPTUNAS,
    "presets": lambda table, *_: Presets(table.space),
    "knapsack": lambda table, limit_bytes, *_: (
        StashKnapsack(table, limit_bytes) if table.is_torch else Knapsack(table.space, table.dims, limit_bytes)
    ),
    "bisection": lambda table, limit_bytes, *_: Bisection(table.space, limit_bytes),
}
"""By name; the first figures of a table are those of ``OURS``."""
