"""Has a config show what it is worth: its gradients beside those without recompute, and a fresh process of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Rejection
from autorecompute.tuning.answer.no_fit import WHOLE_PROCESS_SHARE
from autorecompute.tuning.budget import Task
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from autorecompute.measurement import Detection
    from autorecompute.studies import Problem
    from autorecompute.tuning.answer.rejections import Rejections
    from autorecompute.tuning.answer.standings import Standing
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace


class Confirmer:
    """Confirms the configs of a study, each once, whatever session of it that was in.

    Args:
        place: What it works with.
        rejections: Who cannot be the answer; those that are found out here are added.
        budget: The time there is, which learns here how long a confirmation takes.
        detection: What the job is.
        problem: What has to be solved.
    """

    def __init__(
        self, place: Workplace, rejections: Rejections, budget: Budget, detection: Detection, problem: Problem
    ) -> None:
        self._place, self._bench, self._folder, self._progress = place, place.bench, place.folder, place.progress
        self._settings, self._rejections, self._budget = place.settings, rejections, budget
        self._detection, self._problem = detection, problem
        self._confirmed = {best.config: best for best in self._folder.confirmed()}
        self._failures: dict[Config, str] = {}

    @property
    def best(self) -> Best | None:
        """The fastest of the confirmed configs."""
        known = list(self._confirmed.values())
        has_all = all(best.relative_throughput is not None for best in known)
        return max(
            known,
            key=lambda best: (best.relative_throughput or 0.0) if has_all else best.samples_per_second,
            default=None,
        )

    @property
    def configs(self) -> frozenset[Config]:
        """The confirmed configs."""
        return frozenset(self._confirmed)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why configs were not confirmed in this session that may be confirmed in the next one, in words."""
        return tuple(self._failures.values())

    def needs(self, config: Config) -> tuple[Task, ...]:
        """What has to be done before the config is confirmed; nothing where it is."""
        if config in self._confirmed:
            return ()
        return (Task.CONFIRMATION,) if config.is_none else (Task.CHECK, Task.CONFIRMATION)

    def confirm(self, standing: Standing) -> Best | None:
        """The config with the figures of its fresh process; ``None`` where it was not confirmed, which is told.

        Raises:
            SetupError: the folder cannot be written.
        """
        config = standing.trial.config
        known = self._confirmed.get(config)
        if known is None:
            self._failures.pop(config, None)
            description = self._detection.space.describe(config)
            gradients = self._check_gradients(config, description)
            known = self._watch(standing, description, gradients) if gradients is None or gradients.agrees else None
        if known is None:
            return None
        # What the config is beside no recompute may be better known by now than when it was confirmed.
        low, high = standing.spread or (None, None)
        best = replace(known, relative_throughput=standing.relative_throughput, relative_low=low, relative_high=high)
        self._confirmed[config] = best
        self._folder.keep_confirmed(list(self._confirmed.values()))
        return best

    def _watch(self, standing: Standing, description: str, gradients: GradientCheck | None) -> Best | None:
        config = standing.trial.config
        self._progress.note(f"confirming in a fresh process: {description}")
        environment = self._place.emit(config, self._detection.versions)
        measurement = self._start(environment)
        if measurement.outcome is Outcome.LOST and self._budget.allows_late(Task.CONFIRMATION):
            measurement = self._start(environment)
        failure = _why_unconfirmed(measurement, self._problem.limit_bytes)
        if failure is None:
            best = _best(standing, description, measurement, self._problem)
            return replace(best, gradients=gradients)
        self._progress.note(f"not confirmed: {description}: {failure}")
        self._keep_failure(standing, measurement, f"{description}: {failure}")
        return None

    def _start(self, environment: dict[str, str]) -> Measurement:
        with self._budget.timing(Task.CONFIRMATION):
            return self._bench.watch(environment, self._settings.effort, self._settings.batch)

    def _keep_failure(self, standing: Standing, measurement: Measurement, reason: str) -> None:
        config, peak_bytes = standing.trial.config, measurement.peak_bytes
        outcome = Outcome.OVER_LIMIT if measurement.outcome is Outcome.OK else measurement.outcome
        if outcome.is_about_memory:
            excess_bytes = self._assume_excess(standing) if peak_bytes is None else peak_bytes - standing.peak_bytes
            self._rejections.add(Rejection(config=config, outcome=outcome, reason=reason, excess_bytes=excess_bytes))
        else:
            # Whatever else ended the process may not end the next one.
            self._failures[config] = reason

    def _assume_excess(self, standing: Standing) -> int:
        # Whoever runs out of memory leaves no peak: it needed more than the limit, and nobody saw how much more. The
        # usual share lets a second search begin below the steps of this config, not at them.
        return self._problem.limit_bytes - standing.peak_bytes + round(standing.peak_bytes * WHOLE_PROCESS_SHARE)

    def _check_gradients(self, config: Config, description: str) -> GradientCheck | None:
        if config.is_none:
            return None
        check = self._compare(config)
        if not check.steps:
            # What kept the worker from comparing may not keep the next one.
            self._failures[config] = f"{description}: its gradients were not compared, {check.message}"
            self._progress.note(f"not confirmed: {self._failures[config]}")
        elif not check.agrees:
            reason = f"{description} has wrong gradients{self._culprits(config)}: {check.message.rstrip('.')}"
            self._progress.note(f"{Outcome.WRONG_GRADIENT}: {reason}")
            self._rejections.add(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason))
        return check

    def _culprits(self, config: Config) -> str:
        plans = self._detection.space.plans_of(config)
        if not self._budget.allows(*(Task.CHECK for _ in plans)):
            return ""
        wrong = [plan.label for plan in plans if not self._compare(Config.of([plan])).agrees]
        return f", by {' and '.join(wrong)}" if wrong else ", by its plans together"

    def _compare(self, config: Config) -> GradientCheck:
        with self._budget.timing(Task.CHECK):
            check = self._bench.check(config)
        if isinstance(check, Measurement):
            return GradientCheck(agrees=False, worst=math.nan, steps=0, message=f"{check.outcome}: {check.message}")
        if not check.agrees and not check.message:
            return replace(check, message=f"{check.parameter} is off by {check.worst:.1e} of its largest gradient")
        return check


def _why_unconfirmed(measurement: Measurement, limit_bytes: int) -> str | None:
    if measurement.outcome is not Outcome.OK or measurement.peak_bytes is None:
        return f"{measurement.outcome}: {measurement.message}"
    if measurement.peak_bytes > limit_bytes:
        return f"its whole process reaches {format_bytes(measurement.peak_bytes)}"
    return None


def _best(standing: Standing, description: str, measurement: Measurement, problem: Problem) -> Best:
    assert measurement.peak_bytes is not None, "a confirmed run has a peak"
    assert measurement.samples_per_second is not None, "a confirmed run has steps"
    return Best(
        config=standing.trial.config,
        description=description,
        batch=problem.batch,
        samples_per_second=measurement.samples_per_second,
        relative_throughput=standing.relative_throughput,
        peak_bytes=measurement.peak_bytes,
        limit_bytes=problem.limit_bytes,
        losses=measurement.losses,
        confirmed=True,
    )
