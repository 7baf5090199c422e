"""Tries settings besides recompute on the answer: one knob after the other, in fresh processes that alternate."""

from __future__ import annotations

import math
import os
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

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

    from autorecompute.plans import Choice, Plan
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


class Pair(NamedTuple):
    """Two fresh processes, one right after the other in either order."""

    base: Measurement
    other: Measurement

    @property
    def log_ratio(self) -> float:
        """Logarithm of the throughput of the second over that of the first; both trained."""
        base, other = (measurement.median_step_seconds for measurement in self)
        assert base, "the process without the knob trained"
        assert other, "so did the one with it"
        return math.log(base / other)


class KnobSearch:
    """Tries the knobs of the backend on the answer of a study.

    Args:
        context: What the tuning works with.
    """

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self._backend = registry.backend_of(context.detection.versions)
        self._logs = context.folder.workers / "knobs"

    def run(self, result: Result, keep: Callable[[Result], None]) -> Result:
        """Return the answer with the knobs that pay; as it is where none is wanted, or all were tried before.

        Args:
            result: The answer, with or without knobs.
            keep: Is given the answer after each knob, which an interruption leaves.

        Raises:
            SetupError: the study cannot be written.
        """
        if not self._context.settings.turns_knobs or result.best is None:
            return result
        if not result.knobs:
            result = self._save(replace(result, knobs=tuple(self._begin(result.best.config))), keep)
        for knob in self._backend.KNOBS:
            known = next((figures for figures in result.knobs if figures.name == knob.name), None)
            if known is None or not known.is_open or not self._context.budget.allows(*A_KNOB):
                continue
            self._context.note(f"trying {knob.name}: {knob.effect}")
            assert result.best is not None, "a knob takes nothing away"
            with hold_device(self._context.detection.device, f"study {self._context.folder.path}", self._context.note):
                figures, best = self._try(knob.name, result.best)
            self._context.note(f"knob {knob.name}: {figures.sentence}")
            knobs = tuple(figures if entry is known else entry for entry in result.knobs)
            result = self._save(replace(result, best=best, knobs=knobs), keep)
        return result

    def _begin(self, config: Config) -> list[KnobFigures]:
        inherited = {name: text for name, text in os.environ.items() if name not in registry.variables()}
        return [
            KnobFigures(name=knob.name, why_not=self._backend.why_not(knob, config, self._context.detection, inherited))
            for knob in self._backend.KNOBS
        ]

    def _save(self, result: Result, keep: Callable[[Result], None]) -> Result:
        self._context.folder.finish(result)
        keep(result)
        return result

    def _try(self, knob: str, best: Best) -> tuple[KnobFigures, Best]:
        make_folder(self._logs)
        names = (*best.knobs, knob)
        variables = self._context.emit(Config(), names)
        failed = KnobFigures(name=knob)
        try:
            with self._context.bench.under(variables, self._logs) as bench:
                turned, lost = self._turn(best, names, bench.detect())
                outcome, message, turned = _check_gradients(bench, turned)
        except (ScriptError, SetupError, UsageError) as error:
            return replace(failed, outcome=Outcome.SCRIPT_ERROR, message=str(error)), best
        if outcome is not Outcome.OK:
            return replace(failed, outcome=outcome, message=message), best
        figures, pairs = self._compare(best, turned)
        figures = replace(figures, name=knob, message="; ".join(filter(None, [lost, figures.message])))
        return figures, _with_figures(turned, [pair.other for pair in pairs]) if figures.kept else best

    def _turn(self, best: Best, names: tuple[str, ...], under: Detection) -> tuple[Best, str]:
        """Return the config as far as its plans exist under the knobs: others might be ignored without a word."""
        plans = self._backend.plans_under(names, under)
        choices = self._found(best.config, plans, under)
        if choices == best.config.choices:
            return replace(best, knobs=names), ""
        config = Config(choices)
        description = Space(plans=tuple(plans)).describe(config)
        on = len(best.config.choices)
        lost = f"{on - len(choices)} of the winner's {format_count(on, 'plan')}"
        return replace(best, config=config, description=description, knobs=names), f"without {lost}, not found then"

    def _found(self, config: Config, plans: Sequence[Plan], under: Detection) -> frozenset[Choice]:
        """Return the choices that are on and offered under the knobs, each at as many places as before."""
        if not self._context.detection.space.is_mix(config):
            # No plan is offered for what the training system alone knows: it has its preset or has it not.
            return config.choices if config in under.own_presets.values() else frozenset()
        offered = [choice for plan in plans for choice in plan.choices]
        return frozenset(on for on in config.choices if any(on.covers(choice) for choice in offered))

    def _compare(self, base: Best, other: Best) -> tuple[KnobFigures, list[Pair]]:
        pairs: list[Pair] = []
        outcome, message = Outcome.OK, ""
        while outcome is Outcome.OK and len(pairs) < MOST_PAIRS and not self._is_settled(pairs):
            pairs.append(self._run_pair(base, other, is_base_first=len(pairs) % 2 == 0))
            outcome, message = _judge(pairs, self._context.problem.limit_bytes)
        gain = interval([pair.log_ratio for pair in pairs], MISS) if outcome is Outcome.OK else None
        figures = KnobFigures(
            name="",
            outcome=outcome,
            message=message,
            throughput_ratio=math.exp(gain.middle) if gain else None,
            low=math.exp(gain.low) if gain else None,
            high=math.exp(gain.high) if gain else None,
            peak_bytes=_highest_peak([pair.other for pair in pairs]),
            base_peak_bytes=_highest_peak([pair.base for pair in pairs]),
            kept=gain is not None and gain.middle > math.log1p(MARGIN) and gain.low > 0,
        )
        return figures, pairs

    def _is_settled(self, pairs: Sequence[Pair]) -> bool:
        if not pairs or len(pairs) % 2:
            return False
        ratios = [pair.log_ratio for pair in pairs]
        gain = interval(ratios, MISS)
        is_alike = max(ratios) - min(ratios) <= math.log1p(AGREEMENT)
        is_slower = max(ratios) <= 0
        is_sure = gain.low > 0 or is_slower or (gain.middle <= math.log1p(MARGIN) and is_alike)
        return is_sure or not self._context.budget.allows(*TWO_PAIRS)

    def _run_pair(self, base: Best, other: Best, *, is_base_first: bool) -> Pair:
        if is_base_first:
            return Pair(self._run(base), self._run_guarded(other))
        second = self._run_guarded(other)
        return Pair(self._run(base), second)

    def _run(self, best: Best) -> Measurement:
        environment = self._context.emit(best.config, best.knobs)
        with self._context.budget.timing(Task.CONFIRMATION):
            return self._context.watch(environment, self._context.settings.batch)

    def _run_guarded(self, best: Best) -> Measurement:
        """Return a knob may keep the installation from working."""
        try:
            return self._run(best)
        except SetupError as error:
            return Measurement(outcome=Outcome.SCRIPT_ERROR, message=str(error))


def _check_gradients(bench: Bench, best: Best) -> tuple[Outcome, str, Best]:
    if best.config.is_none:
        return Outcome.OK, "", replace(best, gradients=None)
    check = bench.check(best.config)
    if isinstance(check, Measurement):
        return check.outcome, check.message, best
    if check.agrees:
        return Outcome.OK, "", replace(best, gradients=check)
    return Outcome.WRONG_GRADIENT, check.message or f"{check.parameter} is off by {check.worst:.1e}", best


def _judge(pairs: Sequence[Pair], limit_bytes: int) -> tuple[Outcome, str]:
    base, other = pairs[-1].base, pairs[-1].other.under(limit_bytes)
    if other.outcome is not Outcome.OK:
        return other.outcome, other.message
    if not base.step_seconds:
        # Nothing is known of the knob, and the machine that took the other process may be back the next time.
        return Outcome.LOST, f"what it was to be compared with ended as {base.outcome}: {base.message}"
    # One process without the knob tells nothing of how far its losses scatter.
    return _compare_losses(pairs) if len(pairs) > 1 else (Outcome.OK, "")


def _compare_losses(pairs: Sequence[Pair]) -> tuple[Outcome, str]:
    known = [loss for pair in pairs if (loss := _mean_loss(pair.base)) is not None]
    if not known:
        return Outcome.OK, ""
    expected = statistics.fmean(known)
    allowed = max(known) - min(known) + LOSS_TOLERANCE * abs(expected)
    for loss in [_mean_loss(pair.other) for pair in pairs]:
        if loss is None or not abs(loss - expected) <= allowed:
            return Outcome.WRONG_LOSS, f"its loss is {loss} where that without it is {expected:.6g}"
    return Outcome.OK, ""


def _mean_loss(measurement: Measurement) -> float | None:
    return statistics.fmean(measurement.losses) if measurement.losses else None


def _highest_peak(measurements: Sequence[Measurement]) -> int | None:
    return max((peak for item in measurements if (peak := item.peak_bytes) is not None), default=None)


def _with_figures(best: Best, measured: Sequence[Measurement]) -> Best:
    peak_bytes = _highest_peak(measured)
    assert peak_bytes is not None, "what is kept was measured"
    speeds = [speed for item in measured if (speed := item.samples_per_second) is not None]
    return replace(
        best, samples_per_second=statistics.median(speeds), peak_bytes=peak_bytes, losses=measured[-1].losses
    )
