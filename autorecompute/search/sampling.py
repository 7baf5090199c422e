"""Optuna's samplers as searches, the search as an Optuna sampler, and the choice between them."""

from __future__ import annotations

import importlib.util
import itertools
import random
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from autorecompute.errors import SetupError
from autorecompute.search.greedy import GreedySearcher
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.search.searcher import Proposal, Searcher, preset_reason, steps_by_number
from autorecompute.search.surrogate import needs_nothing
from autorecompute.studies.frozen import (
    CONSTRAINT,
    PRESET,
    config_of,
    distributions_of,
    freeze,
    parameters_of,
    state_of,
    thaw,
    violation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from autorecompute.measurement import Trial
    from autorecompute.memory import PeakForecaster
    from autorecompute.plans import Config, Space
    from autorecompute.search.surrogate import Needs


class RecomputeSampler(BaseSampler):
    """Lets a searcher choose the parameters of an Optuna study.

    The objective gets its config from ``suggest`` and returns the throughput, where the study maximizes, or the step
    time. Before that it says by how much the peak is over the limit, below 0 where it is under it:
    ``trial.set_constraint("bytes over the limit", peak_bytes - limit_bytes)``. For a config that runs out of memory it
    raises ``optuna.TrialPruned``. Trials that run at once get different configs, as long as there is more than one to
    be measured. When the searcher has nothing left to gain, one more config is drawn by chance and
    ``study.optimize`` ends.

    Args:
        searcher: Chooses from the trials of the study.
        space: The plans that the searcher was made for; each is a parameter.
        limit_bytes: The memory limit that the searcher was made for.
        seed: Seed of what is drawn by chance.
    """

    def __init__(self, searcher: Searcher, space: Space, *, limit_bytes: int, seed: int | None = None) -> None:
        self._searcher, self._space, self._limit_bytes = searcher, space, limit_bytes
        self._distributions = distributions_of(space)
        self._random = RandomSampler(seed=seed)
        self._promised: dict[int, Config] = {}
        """Proposals for trials that run, by their numbers: their objectives may not have asked for it yet."""

    def suggest(self, trial: optuna.Trial) -> Config:
        """Return the config that a trial is to measure, in its canonical form."""
        for name, distribution in self._distributions.items():
            if isinstance(distribution, IntDistribution):
                trial.suggest_int(name, distribution.low, distribution.high)
            elif isinstance(distribution, CategoricalDistribution):
                trial.suggest_categorical(name, distribution.choices)
        return config_of(trial.params, self._space)

    def infer_relative_search_space(self, *_: object) -> dict[str, BaseDistribution]:
        """Return a parameter for each plan, and one for presets that are no mix of plans."""
        return dict(self._distributions)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, *_: object) -> dict[str, Any]:
        """Return the config that the searcher proposes, as parameters; none of them when nothing is left to gain."""
        with _PROPOSING:
            trials, claimed = self._trials(study), self._claimed(study)
            # What others measure is measured twice where it is all that is left: they may be gone.
            proposal = self._searcher.propose(trials, claimed) or self._searcher.propose(trials)
            if proposal is not None:
                self._promised[trial.number] = proposal.config
                return parameters_of(proposal.config, self._space)
        # Outside of study.optimize there is no loop to end.
        with suppress(RuntimeError):
            study.stop()
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Choose by chance where the searcher proposes nothing, and for parameters that are no plans."""
        by_chance = self._random.sample_independent
        return "" if param_name == PRESET else by_chance(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Let each of several workers draw other values."""
        self._random.reseed_rng()

    def _trials(self, study: optuna.Study) -> list[Trial]:
        """Return the finished trials that had a config, each beside the one without recompute where there is one."""
        maximizes, trials = study.direction is StudyDirection.MAXIMIZE, []
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state.is_finished() and self._has_config(frozen):
                value = frozen.value if frozen.state is TrialState.COMPLETE else None
                seconds = 1 / value if value is not None and maximizes else value
                trials.append(thaw(frozen, self._space, limit_bytes=self._limit_bytes, step_seconds=seconds))
        references = (trial.measurement.median_step_seconds for trial in trials if trial.config.is_none)
        reference = next(references, None)
        return [trial if trial.reference_seconds else replace(trial, reference_seconds=reference) for trial in trials]

    def _claimed(self, study: optuna.Study) -> set[Config]:
        """Return the configs that running trials measure, or are about to."""
        running = {trial.number: trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))}
        self._promised = {number: config for number, config in self._promised.items() if number in running}
        known = {config_of(trial.params, self._space) for trial in running.values() if self._has_config(trial)}
        return known | set(self._promised.values())

    def _has_config(self, frozen: FrozenTrial) -> bool:
        """Tell whether the objective came as far as asking for it."""
        return frozen.params.keys() >= self._distributions.keys()


_PROPOSING = threading.Lock()
"""Of threads that ask at once, each sees what was proposed to those before. No part of samplers, which are pickled."""


ASKS = 10  # so often a sampler is asked for a config that was not tried yet, before chance decides
DRAWS = 64  # so often chance may hit what was tried, before all configs are gone through

SAMPLERS: dict[str, Callable[..., BaseSampler]] = {"tpe": TPESampler, "gp": GPSampler, "random": RandomSampler}
"""Optuna's samplers by the names that the command line has for them."""

NEEDED = {"gp": ("scipy", "torch")}  # packages that samplers import beyond those of a tuning


def require_installed(name: str) -> None:
    """Raise ``SetupError`` where something that this sampler imports is not installed."""
    missing = [module for module in NEEDED.get(name, ()) if importlib.util.find_spec(module) is None]
    if missing:
        raise SetupError(
            f"Optuna's sampler {name} needs {' and '.join(missing)} where autorecompute runs. "
            f"Install: pip install {' '.join(missing)}"
        )


class OptunaSearcher(Searcher):
    """Asks one of Optuna's samplers, which is made from a seed, after the presets.

    The sampler and its study are made anew from the trials for every proposal, so that the answer depends on them
    alone. The study maximizes throughput beside the reference, under the constraint that the peak holds the limit. The
    search ends when the batch fits without recompute, or when every config was tried.
    """

    def __init__(self, space: Space, *, limit_bytes: int, sampler: Callable[..., BaseSampler], seed: int = 0) -> None:
        self._space, self._limit_bytes = space, limit_bytes
        self._plans = replace(space, own_presets={})
        self._sampler, self._seed = sampler, seed

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when the search has ended."""
        if any(trial.config.is_none and trial.fits for trial in trials):
            return None
        known = {trial.config for trial in trials}
        for preset in self._space.presets.values():
            if preset not in known and preset not in claimed:
                return Proposal(config=preset, reason=preset_reason(preset))
        chance = random.Random(f"{self._seed} {len(trials) + len(claimed)}")  # noqa: S311 (chance, not secrecy)
        sampler = self._sampler(seed=chance.getrandbits(31))
        if (asked := self._ask(sampler, trials, claimed)) is not None:
            return Proposal(config=asked, reason=str(sampler))
        drawn = self._draw({*known, *claimed}, chance)
        return None if drawn is None else Proposal(config=drawn, reason=f"random: {sampler} repeated a config")

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return them as measured: these samplers tell nobody what they expect."""
        return steps_by_number(trials)

    def _ask(self, sampler: BaseSampler, trials: Sequence[Trial], claimed: Collection[Config]) -> Config | None:
        """Return the sampler's choice, unless it repeats one that was tried however often it is told its value."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        steps, known = steps_by_number(trials), {trial.config: trial for trial in trials}
        values = {trial.config: 1 / steps[trial.number] for trial in trials if trial.number in steps}
        # What an opaque preset switches on is no point of the space that the parameters span.
        for trial in (trial for trial in trials if self._plans.is_mix(trial.config)):
            value = values.get(trial.config)
            study.add_trial(freeze(trial, self._plans, value=value, limit_bytes=self._limit_bytes))
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


MODEL, GREEDY = "model", "greedy"
NAMES = (MODEL, GREEDY, *SAMPLERS)


def make_searcher(  # noqa: PLR0913  (what any of them may want to know)
    name: str,
    space: Space,
    *,
    budget: int,
    limit_bytes: int,
    memory: PeakForecaster | None = None,
    needs: Needs = needs_nothing,
    **known: Any,
) -> Searcher:
    """Return the searcher of that name, one of ``NAMES``; the greedy one where there is no model of memory.

    Optuna's samplers do not weigh ``needs``. What else is ``known`` goes to a :class:`ModelSearcher`.
    """
    if name == MODEL and memory is not None:
        return ModelSearcher(space, limit_bytes=limit_bytes, memory=memory, needs=needs, **known)
    if name in {MODEL, GREEDY}:
        return GreedySearcher(space, budget=budget, limit_bytes=limit_bytes, needs=needs)
    return OptunaSearcher(space, limit_bytes=limit_bytes, sampler=SAMPLERS[name])
