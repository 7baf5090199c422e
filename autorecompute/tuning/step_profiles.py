"""Profiles small steps on a live worker: what a study knows before its first trial."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import AutorecomputeError, ScriptError
from autorecompute.memory import StepProfiles
from autorecompute.plans import Config
from autorecompute.search.opening_configs import Opening
from autorecompute.studies.analysis import keep_analysis, read_analysis
from autorecompute.studies.detected import keep_detection
from autorecompute.studies.writing import make_folder
from autorecompute.trials import Bench
from autorecompute.trials.effort import Effort
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autorecompute.measurement import Measurement
    from autorecompute.memory import MemoryModel, StepProfile
    from autorecompute.plans import Space
    from autorecompute.tuning.context import TuningContext


PROFILED_BATCH = 7
"""Small, so that whatever is to fit at the target fits here; and a prime, so that a size it divides is the batch's."""

PROFILING = Effort(warmup=1, steps=1, profiles=True)
MEASURING = Effort(warmup=1, steps=2)
"""One step of warm-up, after which the heap is trimmed: what is held then is what stays."""


def telling_configs(space: Space, wanted: Iterable[Config] = ()) -> list[Config]:
    """None, the wanted ones, the presets, each plan alone, all but each; none of them twice."""
    opening = Opening(space, space.presets.values(), budget=0).whole
    return list(dict.fromkeys([Config(), *wanted, *(proposal.config for proposal in opening)]))


def survey(bench: Bench, configs: Iterable[Config], batch: int | None = None) -> StepProfiles:
    """Measure a step without recompute, and profile one of each config.

    A config that fails where others do not is left out.

    Args:
        bench: Where they are measured.
        configs: What to profile; without recompute is among them.
        batch: Samples a forward; ``None`` for the bench's own.

    Raises:
        ScriptError: not even the config without recompute can train.
    """
    # The first window of a process has a further step of warm-up after the heap was trimmed.
    measuring = replace(MEASURING, batch=batch)
    bench.measure(Config(), measuring)
    measured = bench.measure(Config(), measuring)
    if measured.peak_bytes is None or measured.held_bytes is None:
        raise _failure(bench, measured)
    profiles = dict(_profile(bench, configs, replace(PROFILING, batch=batch)))
    return StepProfiles(peak_bytes=measured.peak_bytes, held_bytes=measured.held_bytes, profiles=profiles)


def _profile(bench: Bench, configs: Iterable[Config], effort: Effort) -> Iterator[tuple[Config, StepProfile]]:
    for config in configs:
        measurement = bench.measure(config, effort)
        if measurement.profile is not None:
            yield config, measurement.profile
        elif config.is_none:
            raise _failure(bench, measurement)


def _failure(bench: Bench, measurement: Measurement) -> ScriptError:
    return ScriptError(
        f"No step without recompute could be profiled: {measurement.message}. Outcome: {measurement.outcome}. "
        f"Its output: {bench.log}"
    )


AFTERWARDS = (*[Task.TRIAL] * 6, Task.CHECK, Task.CONFIRMATION)
"""What there has to be time for: the small steps themselves take about as long as two trials, then come the presets and
the first that was chosen, and an answer is made of it."""


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
    if known is not None or not backend.PROFILES:
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
        found = _profile_small_steps(context)
    except AutorecomputeError as error:
        context.note(f"no small step could be profiled, the search begins without: {error}")
        return None
    if space.all_on not in found.profiles:
        context.note("a small step with all plans on could not be profiled, the search begins without")
        return None
    keep_analysis(context.folder, found)
    return backend.memory_model(space, found)


def _profile_small_steps(context: TuningContext) -> StepProfiles:
    configs, batch = [Config(), context.detection.space.all_on], context.settings.batch
    small = PROFILED_BATCH if batch is None else min(batch, PROFILED_BATCH)
    if context.bench.can_change_batch:
        return survey(context.bench, configs, small)
    # What takes the batch from its command line has to be started again; two at once might not fit the device.
    context.bench.close()
    logs = make_folder(context.logs / "analysis")
    with Bench(context.job, small, logs, study=context.folder.path) as bench:
        return survey(bench, configs)
