"""The searcher of a study, with all that is known before its first guess."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from autorecompute.search import InheritedFirst, PlannedFirst, Proposal, WholeStepSearcher, make_searcher, missing_in
from autorecompute.search.choice import MODEL
from autorecompute.tuning.step_profiles import analyse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel, PeakForecaster
    from autorecompute.prediction import Prediction
    from autorecompute.search import Limit, Prior, Searcher
    from autorecompute.tuning.context import TuningContext


class SearcherFactory:
    """Makes searchers for one study: a second search may follow under a lower limit.

    Args:
        context: What the tuning works with.
        prior: What a stored study knows; ``None`` where there is none.
    """

    def __init__(self, context: TuningContext, prior: Prior | None) -> None:
        self._context, self._prior = context, prior
        self._memory: PeakForecaster | None = None
        self._steps: MemoryModel | None = None
        self._limit_bytes: int | None = None
        self._known_trials = 0
        self._is_analysed = context.settings.sampler != MODEL or not context.detection.plans

    @property
    def takes_steps(self) -> bool:
        """Tell whether the first searcher takes steps of the script to be made."""
        return not self._is_analysed and backend_of(self._context.detection.versions).PROFILES

    def begin(self, limit: Limit) -> Searcher:
        """Return a searcher under the limit that holds once there is a trial without recompute."""
        return _BaselineFirst(self, limit)

    def make(self, limit_bytes: int, trials: int) -> Searcher:
        """Return the searcher that was asked for; the first one takes two small steps of the script.

        Args:
            limit_bytes: What trials are held against.
            trials: How many there are.
        """
        if self._limit_bytes not in {None, limit_bytes}:
            self._known_trials = trials
        self._limit_bytes = limit_bytes
        detection = self._context.detection
        dims = self._context.dims
        if not self._is_analysed:
            backend = backend_of(detection.versions)
            self._steps = backend.memory_of(detection)
            self._memory = analyse(self._context) or backend.peaks_of(detection)
            self._is_analysed = True
        searcher: Searcher = make_searcher(
            self._context.settings.sampler,
            detection.space,
            budget=self._context.settings.max_trials,
            limit_bytes=limit_bytes,
            memory=self._memory,
            dims=dims,
            prior=self._prior.trials if self._prior is not None else (),
            needs=backend_of(detection.versions).needs_of(detection),
            known_trials=self._known_trials,
        )
        if self._steps is not None:
            missing_of = missing_in(self._steps, dims, self._context.bench.step_bytes)
            searcher = WholeStepSearcher(searcher, missing_of, limit_bytes, only_postpones=True)
        if self._prior is not None:
            growth = self._prior.growth(detection.batch, detection.dims)
            searcher = InheritedFirst(searcher, self._prior, growth=growth, limit_bytes=limit_bytes)
        return measure_planned(searcher, self._context)


def measure_planned(searcher: Searcher, context: TuningContext, least_fit: float = 0.0) -> Searcher:
    """Return a searcher that begins with the unmeasured config that the environment switches on, where it does.

    A file that cannot be read, or is of another model, is told and left out: it only is a wish.

    Args:
        searcher: Who goes on.
        context: What the tuning works with.
        least_fit: How surely the config has to fit.
    """
    detection = context.detection
    try:
        config = backend_of(detection.versions).planned(os.environ)
    except UsageError as error:
        context.progress.note(f"no planned config is measured: {error}")
        return searcher
    if config is None or config.is_none:
        return searcher
    if not detection.space.is_mix(config):
        context.progress.note("the planned config is not measured: the model does not offer all of it")
        return searcher
    return PlannedFirst(searcher, detection.space.normalize(config), least_fit)


class _BaselineFirst:
    """Asks for the run without recompute before it takes the trouble to make a searcher.

    A script that fails by itself fails there, and one whose batch fits without recompute needs no more.
    """

    def __init__(self, searching: SearcherFactory, limit: Limit) -> None:
        self._searching, self._limit = searching, limit
        self._made: Searcher | None = None
        self._limit_bytes = 0

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        baseline = next((trial for trial in trials if trial.config.is_none), None)
        if baseline is None:
            return None if Config() in claimed else Proposal(config=Config(), reason="baseline")
        return None if baseline.fits else self._searcher(trials).propose(trials, claimed)

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        # Nobody waits for steps to see what else might have been.
        if self._made is None and self._searching.takes_steps:
            return None
        return self._searcher(trials).predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        fitting = [trial for trial in trials if trial.fits]
        # Where there is nothing to rank, nothing has to be learnt for it.
        if not fitting or any(trial.config.is_none for trial in fitting):
            return {trial.number: trial.measurement.median_step_seconds or 0.0 for trial in fitting}
        return self._searcher(trials).expect_steps(trials)

    def _searcher(self, trials: Sequence[Trial]) -> Searcher:
        limit_bytes = self._limit(trials)
        if self._made is None or limit_bytes != self._limit_bytes:
            self._made, self._limit_bytes = self._searching.make(limit_bytes, len(trials)), limit_bytes
        return self._made
