"""Optuna's own samplers as searchers, for comparison and for those who want them."""

from __future__ import annotations

import importlib.util
import itertools
import random
from dataclasses import replace
from typing import TYPE_CHECKING

import optuna
from optuna.samplers import GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from autorecompute.errors import SetupError
from autorecompute.figures import comparable_steps
from autorecompute.search.searcher import Proposal, preset_reason
from autorecompute.studies.frozen import (
    CONSTRAINT,
    config_of,
    distributions_of,
    freeze,
    state_of,
    violation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from optuna.samplers import BaseSampler

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Space

ASKS = 10
"""So often a sampler is asked for a config that was not tried yet, before chance decides."""

DRAWS = 64
"""So often chance may hit what was tried, before all configs are gone through."""

SAMPLERS: dict[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: TPESampler(seed=seed),
    "gp": lambda seed: GPSampler(seed=seed),
    "random": lambda seed: RandomSampler(seed=seed),
}
"""Optuna's samplers by the names that the command line has for them, each made from a seed."""

NEEDED = {"gp": ("scipy", "torch")}
"""What samplers import beyond what a tuning needs."""


def require_installed(name: str) -> None:
    """Check that this sampler can run here.

    Raises:
        SetupError: something that it imports is not installed.
    """
    missing = [module for module in NEEDED.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise SetupError(
            f"Optuna's sampler {name} needs {' and '.join(missing)} where autorecompute runs. "
            f"Install: pip install {' '.join(missing)}"
        )


class OptunaSearcher:
    """Asks one of Optuna's samplers, after the presets.

    The sampler and its study are made anew from the trials for every proposal, so that the answer depends on them
    alone. The study maximizes throughput beside the reference, under the constraint that the peak holds the limit. The
    search ends when the batch fits without recompute, or when every config was tried.

    Args:
        space: The plans, each of which is a parameter.
        limit_bytes: The memory limit.
        sampler: Makes the sampler from a seed.
        seed: Searches with other seeds draw other configs.
    """

    def __init__(self, space: Space, *, limit_bytes: int, sampler: Callable[[int], BaseSampler], seed: int = 0) -> None:
        self._space, self._limit_bytes = space, limit_bytes
        self._plans = replace(space, own_presets={})
        self._sampler, self._seed = sampler, seed

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when the search has ended."""
        if any(trial.config.is_none and trial.fits for trial in trials):
            return None
        known = {trial.config: trial for trial in trials}
        for preset in self._space.presets.values():
            if preset not in known and preset not in claimed:
                return Proposal(config=preset, reason=preset_reason(preset))
        chance = random.Random(f"{self._seed} {len(trials) + len(claimed)}")  # noqa: S311 (chance, not secrecy)
        study = self._study(trials, chance.getrandbits(31))
        if (asked := self._ask(study, known, claimed)) is not None:
            return Proposal(config=asked, reason=str(study.sampler))
        drawn = self._draw({*known, *claimed}, chance)
        return None if drawn is None else Proposal(config=drawn, reason=f"random: {study.sampler} repeated a config")

    @staticmethod
    def predict(config: Config, trials: Sequence[Trial]) -> None:
        """Return nothing: these samplers tell nobody what they expect."""
        del config, trials

    @staticmethod
    def expect_steps(trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return them as measured: these samplers have no opinion that can be asked for."""
        values = _values(trials)
        return {trial.number: -values[trial.config] for trial in trials if trial.config in values}

    def _study(self, trials: Sequence[Trial], seed: int) -> optuna.Study:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=self._sampler(seed))
        values = _values(trials)
        # What an opaque preset switches on is no point of the space that the parameters span.
        for trial in (trial for trial in trials if self._plans.is_mix(trial.config)):
            value = values.get(trial.config)
            study.add_trial(freeze(trial, self._plans, value=value, limit_bytes=self._limit_bytes))
        return study

    def _ask(self, study: optuna.Study, known: Mapping[Config, Trial], claimed: Collection[Config]) -> Config | None:
        """Return what the sampler wants, unless it wants what was tried however often it is told what that came to."""
        values = _values(list(known.values()))
        distributions = distributions_of(self._plans)
        for _ in range(ASKS):
            asked = study.ask(dict(distributions))
            config = config_of(asked.params, self._space)
            if config not in known and config not in claimed:
                return config
            state, value = TrialState.FAIL, None
            if config in known:
                measurement = known[config].measurement
                asked.set_constraint(CONSTRAINT, violation(measurement, self._limit_bytes))
                state = state_of(measurement.outcome)
                value = values[config] if state is TrialState.COMPLETE else None
            study.tell(asked, value, state)
        return None

    def _draw(self, known: Collection[Config], chance: random.Random) -> Config | None:
        """Return an untried config by chance; ``None`` where there is none."""
        plans = self._plans.plans
        values = [range(plan.occurrences + 1 if plan.counts else 2) for plan in plans]
        drawn = ([chance.choice(of_plan) for of_plan in values] for _ in range(DRAWS))
        every = itertools.chain(drawn, itertools.product(*values))
        keys = [plan.id for plan in plans]
        configs = (config_of(dict(zip(keys, counts, strict=True)), self._plans) for counts in every)
        return next((config for config in configs if config not in known), None)


def _values(trials: Sequence[Trial]) -> dict[Config, float]:
    """Throughput beside the reference of the same minutes; of each trial by itself where one has no reference."""
    timed = {trial.config: trial for trial in trials if trial.measurement.median_step_seconds}
    relative = {config: trial.relative_throughput for config, trial in timed.items()}
    if all(relative.values()):
        return {config: value for config, value in relative.items() if value}
    steps = comparable_steps([trial.measurement for trial in timed.values()])
    return {config: 1 / seconds for config, seconds in zip(timed, steps, strict=True) if seconds}
