"""Profiles one small step of each config that tells something, on a live worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import ScriptError
from autorecompute.memory import StepProfiles
from autorecompute.plans import Config
from autorecompute.search.opening import Opening
from autorecompute.trials.bench import Effort

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autorecompute.measurement import Measurement
    from autorecompute.memory import StepProfile
    from autorecompute.plans import Space
    from autorecompute.trials import Bench

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
    """Measures a step without recompute, and profiles one of each config.

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
