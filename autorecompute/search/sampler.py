"""Any searcher of ours as an Optuna sampler, for studies that are run by Optuna."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import TrialState

from autorecompute.studies.frozen import PRESET, config_of, distributions_of, parameters_of, thaw

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Space
    from autorecompute.search.searcher import Searcher


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
        space: The plans it was made for; each is a parameter.
        limit_bytes: The memory limit it was made for.
        seed: Of what is drawn by chance.
    """

    def __init__(self, searcher: Searcher, space: Space, *, limit_bytes: int, seed: int | None = None) -> None:
        self._searcher, self._space, self._limit_bytes = searcher, space, limit_bytes
        self._distributions = distributions_of(space)
        self._random = RandomSampler(seed=seed)
        self._promised: dict[int, Config] = {}
        """What was proposed for trials that run, by their numbers: their objectives may not have asked for it yet."""

    def suggest(self, trial: optuna.Trial) -> Config:
        """Return the config that a trial is to measure, in its canonical form."""
        for name, distribution in self._distributions.items():
            _suggest(trial, name, distribution)
        return config_of(trial.params, self._space)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return a parameter for each plan, and one for presets that are no mix of plans."""
        del study, trial
        return dict(self._distributions)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the config that the searcher proposes, as parameters; none of them when nothing is left to gain."""
        del search_space
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
        if param_name == PRESET:
            return ""
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Let each of several workers draw other values."""
        self._random.reseed_rng()

    def _trials(self, study: optuna.Study) -> list[Trial]:
        """Return the finished trials that had a config, each beside the one without recompute where there is one."""
        trials = [
            thaw(
                frozen, self._space, limit_bytes=self._limit_bytes, step_seconds=_step_seconds(frozen, study.direction)
            )
            for frozen in study.get_trials(deepcopy=False)
            if frozen.state.is_finished() and self._has_config(frozen)
        ]
        references = (trial.measurement.median_step_seconds for trial in trials if trial.config.is_none)
        reference = next(references, None)
        return [trial if trial.reference_seconds else replace(trial, reference_seconds=reference) for trial in trials]

    def _claimed(self, study: optuna.Study) -> set[Config]:
        """Return what the running trials measure, or are about to."""
        running = {trial.number: trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))}
        self._promised = {number: config for number, config in self._promised.items() if number in running}
        known = {config_of(trial.params, self._space) for trial in running.values() if self._has_config(trial)}
        return known | set(self._promised.values())

    def _has_config(self, frozen: FrozenTrial) -> bool:
        """Tell whether the objective came as far as asking for it."""
        return frozen.params.keys() >= self._distributions.keys()


_PROPOSING = threading.Lock()
"""Of threads that ask at once, each sees what was proposed to those before. No part of samplers, which are pickled."""


def _suggest(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> None:
    if isinstance(distribution, IntDistribution):
        trial.suggest_int(name, distribution.low, distribution.high)
    elif isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)


def _step_seconds(frozen: FrozenTrial, direction: StudyDirection) -> float | None:
    if frozen.state is not TrialState.COMPLETE or frozen.value is None:
        return None
    return 1 / frozen.value if direction is StudyDirection.MAXIMIZE else frozen.value
