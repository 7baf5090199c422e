"""The searcher of a study, with all that is known before its first guess."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH
from autorecompute.search import InheritedFirst, Proposal, make_searcher
from autorecompute.search.choice import MODEL
from autorecompute.tuning.planned import measure_planned
from autorecompute.tuning.step_profiles import analyse

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import PeakForecaster
    from autorecompute.prediction import Prediction
    from autorecompute.search import Prior, Searcher
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
        self._is_analysed = context.settings.sampler != MODEL or not context.detection.plans

    @property
    def takes_steps(self) -> bool:
        """Whether the first searcher takes steps of the script to be made."""
        return not self._is_analysed and backend_of(self._context.detection.versions).PROFILES

    def begin(self, limit_bytes: int) -> Searcher:
        """A searcher under this limit."""
        return _BaselineFirst(self, limit_bytes)

    def make(self, limit_bytes: int) -> Searcher:
        """The searcher that was asked for; the first one takes two small steps of the script."""
        detection = self._context.detection
        dims = {**detection.dims, BATCH: detection.batch}
        if not self._is_analysed:
            backend = backend_of(detection.versions)
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
        )
        if self._prior is not None:
            growth = self._prior.growth(detection.batch, detection.dims)
            searcher = InheritedFirst(searcher, self._prior, growth=growth, limit_bytes=limit_bytes)
        return measure_planned(searcher, self._context)


class _BaselineFirst:
    """Asks for the run without recompute before it takes the trouble to make a searcher.

    A script that fails by itself fails there, and one whose batch fits without recompute needs no more.
    """

    def __init__(self, searching: SearcherFactory, limit_bytes: int) -> None:
        self._searching, self._limit_bytes = searching, limit_bytes
        self._made: Searcher | None = None

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        baseline = next((trial for trial in trials if trial.config.is_none), None)
        if baseline is None:
            return None if Config() in claimed else Proposal(config=Config(), reason="baseline")
        return None if baseline.fits else self._searcher().propose(trials, claimed)

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        # Nobody waits for steps to see what else might have been.
        if self._made is None and self._searching.takes_steps:
            return None
        return self._searcher().predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        fitting = [trial for trial in trials if trial.fits]
        # Where there is nothing to rank, nothing has to be learnt for it.
        if not fitting or any(trial.config.is_none for trial in fitting):
            return {trial.number: trial.measurement.median_step_seconds or 0.0 for trial in fitting}
        return self._searcher().expect_steps(trials)

    def _searcher(self) -> Searcher:
        if self._made is None:
            self._made = self._searching.make(self._limit_bytes)
        return self._made
