"""Configs that are timed in turns, a step of each at a time.

A machine that is shared slows down for a second now and then, which is several steps of a small model. Steps of one
config in a row meet it together, and look slow as a whole; in turns all configs meet it alike.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.trials.effort import Effort
from autorecompute.trials.endings import mark_busy_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Measurement
    from autorecompute.plans import Config
    from autorecompute.trials.bench import Bench

CPU = "cpu"
ONE_STEP = Effort(warmup=0, steps=1)


def takes_turns(bench: Bench) -> bool:
    """Tell whether turns are worth their swaps: the training system makes them in no time, and memory allows it.

    The allocator of a card keeps the blocks of each config. In turns, near its limit, it would free and request them
    again in every step.
    """
    detection = bench.detect()
    return detection.device.kind == CPU and registry.backend_of(detection.versions).takes_turns(detection)


def measure_in_turns(bench: Bench, configs: Sequence[Config], steps: int) -> dict[Config, Measurement]:
    """Measure several configs a step at a time.

    A config that fails is left out from then on. Where the script ends meanwhile, it is started again, and each config
    has the steps that were timed until then, one at least.

    Args:
        bench: Where they are measured.
        configs: What is measured, in this order and back.
        steps: Timed steps of each.
    """
    found: dict[Config, list[Measurement]] = {config: [] for config in configs}
    running, starts = list(found), bench.starts
    for _ in range(steps):
        for config in running:
            found[config].append(bench.measure(config, ONE_STEP))
        running = [config for config in reversed(running) if found[config][-1].outcome.is_measured]
        if bench.starts != starts:
            break  # each further step could take another start
    return {config: join(measured) for config, measured in found.items()}


def join(measurements: Sequence[Measurement]) -> Measurement:
    """Return one measurement of a config's steps that were measured one by one; the last one where that failed."""
    last = measurements[-1]
    if not last.outcome.is_measured:
        return last
    shares = [each.others_share for each in measurements if each.others_share is not None]
    joined = replace(
        max(measurements, key=lambda each: each.peak_bytes or 0),
        step_seconds=tuple(seconds for each in measurements for seconds in each.step_seconds),
        cpu_seconds=tuple(seconds for each in measurements for seconds in each.cpu_seconds),
        losses=tuple(loss for each in measurements for loss in each.losses),
        others_share=statistics.mean(shares) if shares else None,
        warmup_seconds=sum(each.warmup_seconds for each in measurements),
        compile_seconds=sum(each.compile_seconds for each in measurements),
    )
    return mark_busy_host(joined)
