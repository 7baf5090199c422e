"""One search on a table: what it came to, and how soon."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass

from autorecompute.tuning.race import FINALISTS, LOOKS, fitting_finalists

BUDGET = 100
"""Trials that a search may have; one that has not come to the best by then counts as worse than any that has."""

NEAR = 0.01
"""A throughput within this share of the best is as good."""

HEATS = LOOKS[0]
"""Rounds of the race between the finalists: as few as a real one has."""

CHECKPOINTS = (10, 20, 40)
"""Trials after which it is asked how much throughput is still lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of one search.

    Attributes:
        trials: Trials, the first presets included, until a config was measured that truly fits and is near the best;
            ``None`` where that took more than the budget, or the search ended before.
        regrets: Share of the best throughput that the best measured config which truly fits loses, at each checkpoint;
            ``None`` where none that fits was measured yet.
        ended: After how many trials the search ended by itself. One that has found the best is stopped at the last
            checkpoint, and none gets more than the budget: these are counted as if they had ended there.
        answer_regret: The same of the config that would be emitted; ``None`` where none is.
        is_infeasible: Whether the config that would be emitted truly needs more than the limit, by more than a recorded
            peak is off as a rule.
        proposal_seconds: Mean processor time of a proposal.
        longest_seconds: The longest.
    """

    trials: int | None
    regrets: tuple[float | None, ...]
    ended: int
    answer_regret: float | None
    is_infeasible: bool
    proposal_seconds: float
    longest_seconds: float


class Player:
    """Plays one search on a replay.

    The same config measures the same in every search with this seed: searchers differ by what they choose alone.

    Args:
        replay: The bench.
        limit_bytes: The memory limit.
        seed: Chooses among the recordings of each config.
    """

    def __init__(self, replay, limit_bytes, seed):
        self._replay, self._limit_bytes, self._seed = replay, limit_bytes, seed
        self._best = replay.best_ratio(limit_bytes)
        self._seconds = []

    def run(self, searcher):
        """The run of a searcher; it ends once the best is found and the last checkpoint has passed."""
        trials, found = [], None
        while len(trials) < BUDGET and (found is None or len(trials) < max(CHECKPOINTS)):
            config = self._choose(searcher, trials)
            if config is None:
                break
            trials.append(self._measure(config, "trial", len(trials)))
            if found is None and self._is_near_best(config):
                found = len(trials)
        answer = self._answer(searcher, trials)
        return Run(
            trials=found,
            regrets=tuple(self._regret([trial.config for trial in trials[:count]]) for count in CHECKPOINTS),
            ended=len(trials),
            answer_regret=self._regret([answer.config] if answer else []),
            is_infeasible=answer is not None and self._replay.exceeds(answer.config, self._limit_bytes),
            proposal_seconds=sum(self._seconds) / len(self._seconds),
            longest_seconds=max(self._seconds),
        )

    def _choose(self, searcher, trials):
        # Processor time: what else the machine does is no matter of the searcher.
        began = time.process_time()
        proposal = searcher.propose(trials)
        self._seconds.append(time.process_time() - began)
        tried = {trial.config for trial in trials}
        return None if proposal is None else self._replay.nearest(proposal.config, tried)

    def _measure(self, config, purpose, number=0):
        chance = random.Random(f"{self._seed} {purpose} {config.hash}")
        return self._replay.measure(config, chance, limit_bytes=self._limit_bytes, number=number)

    def _truly_fits(self, config):
        return self._replay.truly_fits(config, self._limit_bytes)

    def _is_near_best(self, config):
        return self._truly_fits(config) and self._regret([config]) <= NEAR

    def _regret(self, configs):
        ratios = [self._replay.truths[config].ratio for config in configs if self._truly_fits(config)]
        return max(0.0, 1 - self._best / min(ratios)) if ratios else None

    def _answer(self, searcher, trials):
        """The fastest of the finalists in a race, which fits in every heat and once more."""
        steps = searcher.expect_steps(trials) if hasattr(searcher, "expect_steps") else None
        for entries in _in_groups(fitting_finalists(trials, steps)):
            raced = {entry.trial.number: self._race(entry.trial.config) for entry in entries}
            for entry in sorted(entries, key=lambda entry: self._pace(raced[entry.trial.number])):
                heats = [*raced[entry.trial.number], self._measure(entry.trial.config, "confirmation")]
                if all(heat.fits for heat in heats):
                    return entry.trial
        return None

    def _race(self, config):
        return [self._measure(config, f"heat {number}") for number in range(HEATS)]

    @staticmethod
    def _pace(heats):
        return statistics.median(1 / heat.relative_throughput for heat in heats if heat.relative_throughput)


def _in_groups(entries):
    """As many at a time as run in one race."""
    return (entries[start : start + FINALISTS] for start in range(0, len(entries), FINALISTS))
