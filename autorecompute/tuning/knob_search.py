"""Tries settings besides recompute on the answer: one knob after the other, in fresh processes that alternate."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.errors import ScriptError, SetupError, UsageError
from autorecompute.figures import KnobFigures
from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config, Space
from autorecompute.studies.folder import make_folder
from autorecompute.trials.private import hold_device
from autorecompute.tuning.budget import Task
from autorecompute.tuning.intervals import interval
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.result import Best, Result
    from autorecompute.training_job import Detection
    from autorecompute.trials import Bench
    from autorecompute.tuning.context import TuningContext

MARGIN = 0.02
"""A knob must make training faster by more than this share."""

MOST_PAIRS = 6
"""Two pairs of processes are compared first. Further ones follow where a gain is not sure, or where pairs disagree on
whether there is one."""

AGREEMENT = 0.1
"""Pairs agree whose ratios differ by no more than this share."""

MISS = 0.025
"""Chance that the gain lies below its interval, and the same again that it lies above."""

LOSS_TOLERANCE = 0.05
"""Losses of the same steps may differ by this share, beyond what processes without the knob differ among themselves.
Where a graph becomes another one its Dropouts draw other masks, which alone moved the loss of a small model by 1 %."""

TWO_PAIRS = (Task.CONFIRMATION,) * 4
A_KNOB = (Task.START, Task.CHECK, *TWO_PAIRS)
"""Least tasks of a knob."""


def try_knobs(context: TuningContext, result: Result, keep: Callable[[Result], None]) -> Result:
    """Return the answer with the knobs that pay; as it is where none is wanted, or all were tried before.

    ``keep`` is given the answer after each knob, which an interruption leaves.
    """
    best, backend = result.best, registry.backend_of(context.detection.versions)
    if not context.settings.turns_knobs or best is None:
        return result
    if not backend.KNOBS:
        context.note(f"no knob to try: there is none for {backend.NAME}")

    def save(changed: Result) -> Result:
        context.folder.finish(changed)
        keep(changed)
        return changed

    if not result.knobs:
        inherited, untried = os.environ.keys() - set(registry.variables()), list[KnobFigures]()
        for knob in backend.KNOBS:
            taken = sorted(inherited.intersection(knob.variables))
            why_not = knob.why_not(best.config, context.detection)
            why_not = why_not or (f"{taken[0]} is set in your environment" if taken else "")
            untried.append(KnobFigures(name=knob.name, why_not=why_not))
        result = save(replace(result, knobs=tuple(untried)))
    for knob in backend.KNOBS:
        known = next((figures for figures in result.knobs if figures.name == knob.name), None)
        if known is None or not known.is_open or not context.budget.allows(*A_KNOB):
            continue
        context.note(f"trying {knob.name}: {knob.effect}")
        with hold_device(context.detection.device, f"study {context.folder.path}", context.note):
            figures, best = _try(context, knob.name, best)
        context.note(f"knob {knob.name}: {figures.sentence}")
        knobs = tuple(figures if entry is known else entry for entry in result.knobs)
        result = save(replace(result, best=best, knobs=knobs))
    return result


def _try(context: TuningContext, knob: str, best: Best) -> tuple[KnobFigures, Best]:
    logs, names = make_folder(context.folder.workers / "knobs"), (*best.knobs, knob)
    variables = context.emit(Config(), names)
    try:
        with context.bench.under(variables, logs) as bench:
            turned, lost = _turn(context, best, names, bench.detect())
            outcome, message, turned = _check_gradients(bench, turned)
    except (ScriptError, SetupError, UsageError) as error:
        return KnobFigures(name=knob, outcome=Outcome.SCRIPT_ERROR, message=str(error)), best
    if outcome is not Outcome.OK:
        return KnobFigures(name=knob, outcome=outcome, message=message), best
    figures, measured = _compare(context, knob, best, turned)
    figures = replace(figures, message="; ".join(filter(None, [lost, figures.message])))
    if not figures.kept:
        return figures, best
    assert figures.peak_bytes is not None, "what is kept was measured"
    speed = statistics.median(speed for item in measured if (speed := item.samples_per_second) is not None)
    losses = measured[-1].losses
    return figures, replace(turned, samples_per_second=speed, peak_bytes=figures.peak_bytes, losses=losses)


def _turn(context: TuningContext, best: Best, names: tuple[str, ...], under: Detection) -> tuple[Best, str]:
    """Return the config as far as its plans exist under the knobs: others might be ignored without a word."""
    known = registry.backend_of(context.detection.versions).KNOBS
    changing = [knob.plans for knob in known if knob.plans is not None and knob.name in names]
    plans, on = changing[0](under) if changing else under.plans, best.config.choices
    if context.detection.space.is_mix(best.config):
        offered = [choice for plan in plans for choice in plan.choices]
        # Each at as many places as before.
        found = frozenset(own for own in on if any(own.covers(choice) for choice in offered))
    else:
        # No plan is offered for what the training system alone knows: it has its preset or has it not.
        found = on if best.config in under.own_presets.values() else frozenset()
    if found == on:
        return replace(best, knobs=names), ""
    config = Config(found)
    turned = replace(best, config=config, description=Space(plans=tuple(plans)).describe(config), knobs=names)
    return turned, f"without {len(on) - len(found)} of the winner's {format_count(len(on), 'plan')}, not found then"


def _compare(context: TuningContext, knob: str, base: Best, other: Best) -> tuple[KnobFigures, list[Measurement]]:
    bases: list[Measurement] = []
    others: list[Measurement] = []
    outcome, message = Outcome.OK, ""
    while outcome is Outcome.OK and len(bases) < MOST_PAIRS and not _is_settled(context, bases, others):
        turns = [(bases, base), (others, other)]
        for runs, best in turns if len(bases) % 2 == 0 else reversed(turns):
            runs.append(_run(context, best, may_break=runs is others))
        outcome, message = _judge(bases, others, context.problem.limit_bytes)
    gain = interval(_log_ratios(bases, others), MISS) if outcome is Outcome.OK else None
    figures = KnobFigures(
        name=knob,
        outcome=outcome,
        message=message,
        throughput_ratio=math.exp(gain.middle) if gain else None,
        low=math.exp(gain.low) if gain else None,
        high=math.exp(gain.high) if gain else None,
        peak_bytes=_highest_peak(others),
        base_peak_bytes=_highest_peak(bases),
        kept=gain is not None and gain.middle > math.log1p(MARGIN) and gain.low > 0,
    )
    return figures, others


def _is_settled(context: TuningContext, bases: Sequence[Measurement], others: Sequence[Measurement]) -> bool:
    if not bases or len(bases) % 2:
        return False
    ratios = _log_ratios(bases, others)
    gain = interval(ratios, MISS)
    is_alike = max(ratios) - min(ratios) <= math.log1p(AGREEMENT)
    is_slower = max(ratios) <= 0
    is_sure = gain.low > 0 or is_slower or (gain.middle <= math.log1p(MARGIN) and is_alike)
    return is_sure or not context.budget.allows(*TWO_PAIRS)


def _run(context: TuningContext, best: Best, *, may_break: bool) -> Measurement:
    # A knob may keep the installation from working.
    try:
        environment = context.emit(best.config, best.knobs)
        with context.budget.timing(Task.CONFIRMATION):
            return context.watch(environment, context.settings.batch)
    except SetupError as error:
        if not may_break:
            raise
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=str(error))


def _log_ratios(bases: Sequence[Measurement], others: Sequence[Measurement]) -> list[float]:
    """Return the logarithms of the throughput with the knob over that without; all of these processes trained."""
    ratios = []
    for pair in zip(bases, others, strict=True):
        base, other = (measurement.median_step_seconds for measurement in pair)
        assert base, "the process without the knob trained"
        assert other, "so did the one with it"
        ratios.append(math.log(base / other))
    return ratios


def _check_gradients(bench: Bench, best: Best) -> tuple[Outcome, str, Best]:
    if best.config.is_none:
        return Outcome.OK, "", replace(best, gradients=None)
    check = bench.check(best.config)
    if isinstance(check, Measurement):
        return check.outcome, check.message, best
    if check.agrees:
        return Outcome.OK, "", replace(best, gradients=check)
    return Outcome.WRONG_GRADIENT, check.message or f"{check.parameter} is off by {check.worst:.1e}", best


def _judge(bases: Sequence[Measurement], others: Sequence[Measurement], limit_bytes: int) -> tuple[Outcome, str]:
    base, other = bases[-1], others[-1].under(limit_bytes)
    if other.outcome is not Outcome.OK:
        return other.outcome, other.message
    if not base.step_seconds:
        # Nothing is known of the knob, and the machine that took the other process may be back the next time.
        return Outcome.LOST, f"what it was to be compared with ended as {base.outcome}: {base.message}"
    known = [loss for item in bases if (loss := _mean_loss(item)) is not None]
    # One process without the knob tells nothing of how far its losses scatter.
    if not known or len(bases) == 1:
        return Outcome.OK, ""
    expected = statistics.fmean(known)
    allowed = max(known) - min(known) + LOSS_TOLERANCE * abs(expected)
    for loss in map(_mean_loss, others):
        if loss is None or not abs(loss - expected) <= allowed:
            return Outcome.WRONG_LOSS, f"its loss is {loss} where that without it is {expected:.6g}"
    return Outcome.OK, ""


def _mean_loss(measurement: Measurement) -> float | None:
    return statistics.fmean(measurement.losses) if measurement.losses else None


def _highest_peak(measurements: Sequence[Measurement]) -> int | None:
    return max((peak for item in measurements if (peak := item.peak_bytes) is not None), default=None)
