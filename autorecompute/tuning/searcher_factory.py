"""Makes the search of a tuning: from step profiles, and from what other studies found."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import AutorecomputeError, ScriptError, UsageError
from autorecompute.memory import StepProfiles
from autorecompute.plans import Config
from autorecompute.search import GuidedSearcher, Prior, Proposal, Searcher, make_searcher, needs_in
from autorecompute.search.greedy import opening_of
from autorecompute.search.sampling import MODEL
from autorecompute.studies.analysis import keep_analysis, keep_detection, read_analysis
from autorecompute.studies.folder import make_folder
from autorecompute.trials import Bench
from autorecompute.trials.job import Effort
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from autorecompute.measurement import Measurement, Prediction, Trial
    from autorecompute.memory import MemoryModel, PeakForecaster, StepProfile
    from autorecompute.plans import Space
    from autorecompute.search import Limit
    from autorecompute.tuning.context import TuningContext


PROFILED_BATCH = 7
"""Small, so that whatever is to fit at the target fits here; and a prime, so that a size it divides is the batch's."""

PROFILING = Effort(warmup=1, steps=1, profiles=True)
MEASURING = Effort(warmup=1, steps=2)
"""One step of warm-up, after which the heap is trimmed: what is held then is what stays."""


def informative_configs(space: Space, wanted: Iterable[Config] = ()) -> list[Config]:
    """None, the wanted ones, the presets, each plan alone, all but each; none of them twice."""
    opening = chain.from_iterable(opening_of(space, space.presets.values()))
    return list(dict.fromkeys([Config(), *wanted, *(proposal.config for proposal in opening)]))


def survey(bench: Bench, configs: Iterable[Config], batch: int | None = None) -> StepProfiles:
    """Measure a step without recompute, and profile one of each config; without recompute is among them.

    A config that fails where others do not is left out. A batch of ``None`` is the bench's own.

    Raises:
        ScriptError: not even the config without recompute can train.
    """
    # The first window of a process has a further step of warm-up after the heap was trimmed.
    measuring = replace(MEASURING, batch=batch)
    bench.measure(Config(), measuring)
    measured = bench.measure(Config(), measuring)
    if measured.peak_bytes is None or measured.held_bytes is None:
        raise _failure(bench, measured)
    profiles: dict[Config, StepProfile] = {}
    for config in configs:
        measurement = bench.measure(config, replace(PROFILING, batch=batch))
        if measurement.profile is not None:
            profiles[config] = measurement.profile
        elif config.is_none:
            raise _failure(bench, measurement)
    return StepProfiles(peak_bytes=measured.peak_bytes, held_bytes=measured.held_bytes, profiles=profiles)


def _failure(bench: Bench, measurement: Measurement) -> ScriptError:
    return ScriptError(
        f"No step without recompute could be profiled: {measurement.message}. Outcome: {measurement.outcome}. "
        f"Its output: {bench.log}"
    )


AFTERWARDS = (*[Task.TRIAL] * 6, Task.CHECK, Task.CONFIRMATION)
"""Tasks for which time must remain. The small steps themselves take about as long as two trials. Then come the presets
and the first config that was chosen, and an answer is made of it."""


def analyse(context: TuningContext) -> MemoryModel | None:
    """Return the model of memory that the detection gives, or two profiled steps, from the study's folder if kept.

    ``None``, with a note, where they cannot be had or would take the time that is left: the search then has to learn
    from trials alone.
    """
    detection = context.detection
    backend, space = backend_of(detection.versions), detection.space
    known = backend.memory_of(detection)
    if known is not None:
        keep_detection(context.folder, detection)
    if known is not None or backend.memory_model is None:
        return known
    kept = read_analysis(context.folder)
    if kept is not None:
        return backend.memory_model(space, kept)
    # With a batch on its command line the script is started for them, and for the next trial again.
    starts = () if context.bench.can_change_batch else (Task.START, Task.START)
    if not context.budget.allows(*starts, *AFTERWARDS):
        context.note("no time to profile small steps, the search begins without")
        return None
    context.note("profiling two small steps: without recompute, and with all plans on")
    try:
        batch, configs = context.settings.batch, [Config(), space.all_on]
        small = PROFILED_BATCH if batch is None else min(batch, PROFILED_BATCH)
        if context.bench.can_change_batch:
            found = survey(context.bench, configs, small)
        else:
            # What takes the batch from its command line has to be started again; two at once might not fit the device.
            context.bench.close()
            logs = make_folder(context.logs / "analysis")
            with Bench(context.job, small, logs, study=context.folder.path) as bench:
                found = survey(bench, configs)
    except AutorecomputeError as error:
        context.note(f"no small step could be profiled, the search begins without: {error}")
        return None
    if space.all_on not in found.profiles:
        context.note("a small step with all plans on could not be profiled, the search begins without")
        return None
    keep_analysis(context.folder, found)
    return backend.memory_model(space, found)


class StudySearcher(Searcher):
    """The search of one study. A second one may follow under a lower limit.

    It asks for the run without recompute before it takes the trouble to make the searcher that goes on: a script that
    fails by itself fails there, and one whose batch fits without recompute needs no more.
    """

    def __init__(self, context: TuningContext, prior: Prior | None, limit: Limit) -> None:
        self._context, self._prior, self._limit = context, prior, limit
        self._made: Searcher | None = None
        self._limit_bytes: int | None = None
        self._memory: PeakForecaster | None = None
        self._steps: MemoryModel | None = None
        self._known_trials = 0
        self._why_not_without = context.why_not_without()
        self._is_analysed = context.settings.sampler != MODEL or not context.detection.plans

    def begin(self) -> Searcher:
        """Begin a search, and return it."""
        if self._why_not_without:
            self._context.note(f"no trial without recompute: {self._why_not_without}")
        self._made = None
        return self

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain."""
        baseline = next((trial for trial in trials if trial.config.is_none), None)
        outcomes = [trial.measurement.outcome for trial in trials]
        breaks = any(not outcome.is_measured and not outcome.is_about_memory for outcome in outcomes)
        # Where it has no room it is left out, unless a trial fails otherwise.
        if baseline is None and (breaks or not self._why_not_without):
            return None if Config() in claimed else Proposal(config=Config(), reason="baseline")
        if baseline is not None and baseline.fits:
            return None
        return self._searcher(trials).propose(trials, {Config(), *claimed})

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Return the prediction of a config; ``None`` where steps of the script would have to be taken for it."""
        takes_steps = not self._is_analysed and backend_of(self._context.detection.versions).memory_model is not None
        if self._made is None and takes_steps:
            return None
        return self._searcher(trials).predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return the expected steps of the timed trials."""
        fitting = [trial for trial in trials if trial.fits]
        # Where there is nothing to rank, nothing has to be learnt for it.
        if not fitting or any(trial.config.is_none for trial in fitting):
            return {trial.number: trial.measurement.median_step_seconds or 0.0 for trial in fitting}
        return self._searcher(trials).expect_steps(trials)

    def _searcher(self, trials: Sequence[Trial]) -> Searcher:
        """Return the searcher under the limit that holds now; the first one takes two small steps of the script."""
        limit_bytes = self._limit(trials)
        if self._made is None or limit_bytes != self._limit_bytes:
            if self._limit_bytes not in {None, limit_bytes}:
                self._known_trials = len(trials)
            self._limit_bytes = limit_bytes
            self._made = self._make(limit_bytes)
        return self._made

    def _make(self, limit_bytes: int) -> Searcher:
        context, detection, dims = self._context, self._context.detection, self._context.dims
        backend = backend_of(detection.versions)
        if not self._is_analysed:
            self._steps = backend.memory_of(detection)
            self._memory = analyse(context) or backend.peaks_of(detection)
            self._is_analysed = True
        searcher = make_searcher(
            context.settings.sampler,
            detection.space,
            budget=context.settings.max_trials,
            limit_bytes=limit_bytes,
            memory=self._memory,
            dims=dims,
            prior=self._prior.trials if self._prior is not None else (),
            needs=backend.needs_of(detection),
            known_trials=self._known_trials,
        )
        return GuidedSearcher(
            searcher,
            limit_bytes,
            planned=planned_config(context),
            prior=self._prior,
            growth=self._prior.growth(detection.batch, detection.dims) if self._prior is not None else 1.0,
            needs_of=needs_in(self._steps, dims, context.bench.whole_step) if self._steps is not None else None,
        )


def planned_config(context: TuningContext) -> Config | None:
    """Return the unmeasured config that the environment switches on; ``None`` where it switches on none.

    A file that cannot be read, or is of another model, is told and left out: it only is a wish.
    """
    detection = context.detection
    try:
        config = backend_of(detection.versions).planned(os.environ)
    except UsageError as error:
        context.progress.note(f"no planned config is measured: {error}")
        return None
    if config is None or config.is_none:
        return None
    if not detection.space.is_mix(config):
        context.progress.note("the planned config is not measured: the model does not offer all of it")
        return None
    return detection.space.normalize(config)
