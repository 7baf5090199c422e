"""What a study knows before its first trial: what the detection tells of memory, or two profiled small steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.errors import AutorecomputeError
from autorecompute.plans import Config
from autorecompute.studies.analysis import keep_analysis, read_analysis
from autorecompute.studies.writing import saying_what_fails
from autorecompute.trials import Bench
from autorecompute.tuning.budget import Task
from autorecompute.tuning.survey import PROFILED_BATCH, survey

if TYPE_CHECKING:
    from autorecompute.measurement import Detection
    from autorecompute.memory import MemoryModel, StepProfiles
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace

AFTERWARDS = (*[Task.TRIAL] * 6, Task.CHECK, Task.CONFIRMATION)
"""What there has to be time for: the small steps themselves take about as long as two trials, then come the presets and
the first that was chosen, and an answer is made of it."""


def analyse(place: Workplace, detection: Detection, budget: Budget) -> MemoryModel | None:
    """The model of memory that the detection gives, or two profiled steps, from the study's folder where they are kept.

    ``None``, with a note, where they cannot be had or would take the time that is left: the search then has to learn
    from trials alone.
    """
    backend, space = backend_of(detection.versions), detection.space
    known = backend.memory_of(detection)
    if known is not None or not backend.PROFILES:
        return known
    kept = read_analysis(place.folder)
    if kept is not None:
        return backend.memory_model(space, kept)
    # With a batch on its command line the script is started for them, and for the next trial again.
    starts = () if place.bench.can_change_batch else (Task.START, Task.START)
    if not budget.allows(*starts, *AFTERWARDS):
        place.progress.note("no time to profile small steps, the search begins without")
        return None
    place.progress.note("profiling two small steps: without recompute, and with all plans on")
    try:
        found = _survey(place, detection)
    except AutorecomputeError as error:
        place.progress.note(f"no small step could be profiled, the search begins without: {error}")
        return None
    if space.all_on not in found.profiles:
        place.progress.note("a small step with all plans on could not be profiled, the search begins without")
        return None
    keep_analysis(place.folder, found)
    return backend.memory_model(space, found)


def _survey(place: Workplace, detection: Detection) -> StepProfiles:
    configs, batch = [Config(), detection.space.all_on], place.settings.batch
    small = PROFILED_BATCH if batch is None else min(batch, PROFILED_BATCH)
    if place.bench.can_change_batch:
        return survey(place.bench, configs, small)
    # What takes the batch from its command line has to be started again; two at once might not fit the device.
    place.bench.close()
    logs = place.logs / "analysis"
    with saying_what_fails(logs):
        logs.mkdir(parents=True, exist_ok=True)
    with Bench(place.job, small, logs) as bench:
        return survey(bench, configs)
