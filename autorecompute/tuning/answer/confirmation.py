"""Confirms configs: gradients compared with those without recompute, and a fresh process under what is emitted."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Rejection
from autorecompute.tuning.budget import Task
from autorecompute.tuning.explanations import WHOLE_PROCESS_SHARE
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.studies import Problem, StudyFolder
    from autorecompute.tuning.answer.finalists import Finalist
    from autorecompute.tuning.context import TuningContext


BEFORE_TRAINING = " before its first step: what loads the model, or exports it, takes more than training"

TELLING = 2
"""Whole processes that needed too much, before others are taken to need as much more than their steps."""


class Confirmer:
    """Confirms the configs of a study, each once, whatever session of it that was in.

    Args:
        context: What the tuning works with.
        rejections: Who cannot be the answer; those that are found out here are added.
    """

    def __init__(self, context: TuningContext, rejections: Rejections) -> None:
        self._context, self._rejections = context, rejections
        self._confirmed = {best.config: best for best in self._context.folder.confirmed()}
        self._failures: dict[Config, str] = {}

    @property
    def best(self) -> Best | None:
        """Return the fastest of the confirmed configs."""
        known = list(self._confirmed.values())
        has_all = all(best.relative_throughput is not None for best in known)
        return max(
            known,
            key=lambda best: (best.relative_throughput or 0.0) if has_all else best.samples_per_second,
            default=None,
        )

    @property
    def configs(self) -> frozenset[Config]:
        """Return the confirmed configs."""
        return frozenset(self._confirmed)

    @property
    def failures(self) -> tuple[str, ...]:
        """Return why configs were not confirmed in this session that may be confirmed in the next one, in words."""
        return tuple(self._failures.values())

    def excess_bytes(self, trials: Sequence[Trial]) -> int | None:
        """Return what whole processes held beyond the peak of their trial; ``None`` where none has run.

        Of those that held the limit the usual one tells, as one may have held more by chance. Those that broke it tell
        less: of them the one that held most counts.

        Args:
            trials: What was measured.
        """
        peaks = {trial.config: trial.measurement.peak_bytes for trial in trials}
        confirmed = [best.peak_bytes - (peaks.get(best.config) or best.peak_bytes) for best in self._confirmed.values()]
        return statistics.median_low(confirmed) if confirmed else max(self._rejections.known_excesses, default=None)

    def needs(self, config: Config) -> tuple[Task, ...]:
        """Return what has to be done before the config is confirmed; nothing where it is."""
        if config in self._confirmed:
            return ()
        return (Task.CONFIRMATION,) if config.is_none else (Task.CHECK, Task.CONFIRMATION)

    def confirm(self, finalist: Finalist) -> Best | None:
        """Return the config with the figures of its fresh process; ``None`` with a note where it was not confirmed.

        Raises:
            SetupError: the folder cannot be written.
        """
        config = finalist.trial.config
        known = self._confirmed.get(config)
        if known is None:
            self._failures.pop(config, None)
            known = self._prove(finalist, self._context.detection.space.describe(config))
        if known is None:
            return None
        return self._update(known, finalist)

    def learn(self, standings: Sequence[Finalist]) -> None:
        """Take what a race tells of configs that were confirmed before it: single trials are compared with it else.

        Args:
            standings: Who was raced.

        Raises:
            SetupError: the folder cannot be written.
        """
        for finalist in standings:
            known = self._confirmed.get(finalist.trial.config)
            if known is not None and finalist.ratios:
                self._update(known, finalist)

    def _update(self, known: Best, finalist: Finalist) -> Best:
        # What the config is beside no recompute may be better known by now than when it was confirmed.
        low, high = finalist.spread or (None, None)
        best = replace(known, relative_throughput=finalist.relative_throughput, relative_low=low, relative_high=high)
        self._confirmed[known.config] = best
        self._context.folder.keep_confirmed(list(self._confirmed.values()))
        return best

    def _prove(self, finalist: Finalist, description: str) -> Best | None:
        # The fresh process ends the worker, which takes longer to start than anything here.
        if not self._context.bench.is_live:
            watched = self._watch(finalist, description)
            gradients = self._check_gradients(finalist.trial.config, description) if watched is not None else None
        else:
            gradients = self._check_gradients(finalist.trial.config, description)
            watched = self._watch(finalist, description) if gradients is None or gradients.agrees else None
        is_right = gradients is None or gradients.agrees
        return replace(watched, gradients=gradients) if watched is not None and is_right else None

    def _watch(self, finalist: Finalist, description: str) -> Best | None:
        config = finalist.trial.config
        self._context.note(f"confirming in a fresh process: {description}")
        environment = self._context.emit(config)
        measurement = self._start(environment)
        if measurement.outcome is Outcome.LOST and self._context.budget.allows_late(Task.CONFIRMATION):
            measurement = self._start(environment)
        failure = _why_unconfirmed(measurement, self._context.problem.limit_bytes)
        if failure is None:
            return _best(finalist, description, measurement, self._context.problem)
        self._context.note(f"not confirmed: {description}: {failure}")
        self._keep_failure(finalist, measurement, f"{description}: {failure}")
        return None

    def _start(self, environment: dict[str, str]) -> Measurement:
        with self._context.budget.timing(Task.CONFIRMATION):
            return self._context.watch(environment, self._context.settings.batch)

    def _keep_failure(self, finalist: Finalist, measurement: Measurement, reason: str) -> None:
        config, peak_bytes = finalist.trial.config, measurement.peak_bytes
        outcome = measurement.under(self._context.problem.limit_bytes).outcome
        if outcome.is_about_memory:
            excess_bytes = self._assume_excess(finalist) if peak_bytes is None else peak_bytes - finalist.peak_bytes
            self._rejections.add(Rejection(config=config, outcome=outcome, reason=reason, excess_bytes=excess_bytes))
        else:
            # Whatever else ended the process may not end the next one.
            self._failures[config] = reason

    def _assume_excess(self, finalist: Finalist) -> int:
        # A process that runs out of memory leaves no peak, only the fact that it needed more than the limit. The usual
        # share lets a second search begin below the steps of this config, not at them.
        return (
            self._context.problem.limit_bytes - finalist.peak_bytes + round(finalist.peak_bytes * WHOLE_PROCESS_SHARE)
        )

    def _check_gradients(self, config: Config, description: str) -> GradientCheck | None:
        if config.is_none:
            return None
        check = self._compare(config)
        if not check.steps:
            # What kept the worker from comparing may not keep the next one.
            self._failures[config] = f"{description}: its gradients were not compared, {check.message}"
            self._context.note(f"not confirmed: {self._failures[config]}")
        elif not check.agrees:
            reason = f"{description} has wrong gradients{self._culprits(config)}: {check.message.rstrip('.')}"
            self._context.note(f"{Outcome.WRONG_GRADIENT}: {reason}")
            self._rejections.add(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason))
        return check

    def _culprits(self, config: Config) -> str:
        plans = self._context.detection.space.plans_of(config)
        if not self._context.budget.allows(*(Task.CHECK for _ in plans)):
            return ""
        checks = {plan.label: self._compare(Config.of([plan])) for plan in plans}
        # What kept one of them from being compared says nothing of its gradients.
        wrong = [label for label, check in checks.items() if check.steps and not check.agrees]
        if wrong:
            return f", by {' and '.join(wrong)}"
        return ", by its plans together" if all(check.steps for check in checks.values()) else ""

    def _compare(self, config: Config) -> GradientCheck:
        with self._context.budget.timing(Task.CHECK):
            check = self._context.bench.check(config)
        if isinstance(check, Measurement):
            return GradientCheck(agrees=False, worst=math.nan, steps=0, message=f"{check.outcome}: {check.message}")
        if not check.agrees and not check.message:
            return replace(check, message=f"{check.parameter} is off by {check.worst:.1e} of its largest gradient")
        return check


def _why_unconfirmed(measurement: Measurement, limit_bytes: int) -> str | None:
    if measurement.outcome is not Outcome.OK or measurement.peak_bytes is None:
        return f"{measurement.outcome}: {measurement.message}"
    if measurement.peak_bytes > limit_bytes:
        when = BEFORE_TRAINING if measurement.peak_bytes == measurement.before_bytes else ""
        return f"its whole process reaches {format_bytes(measurement.peak_bytes)}{when}"
    return None


def _best(finalist: Finalist, description: str, measurement: Measurement, problem: Problem) -> Best:
    assert measurement.peak_bytes is not None, "a confirmed run has a peak"
    assert measurement.samples_per_second is not None, "a confirmed run has steps"
    return Best(
        config=finalist.trial.config,
        description=description,
        batch=problem.batch,
        samples_per_second=measurement.samples_per_second,
        relative_throughput=finalist.relative_throughput,
        peak_bytes=measurement.peak_bytes,
        limit_bytes=problem.limit_bytes,
        losses=measurement.losses,
        confirmed=True,
    )


class Rejections:
    """What is known of a study's finalists that cannot be its answer, over all its runs.

    Args:
        folder: The study.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._known = folder.rejections()

    @property
    def excess_bytes(self) -> int:
        """Return what a whole process needed beyond its timed steps, at least; 0 where none needed too much."""
        return min(self.known_excesses, default=0)

    @property
    def known_excesses(self) -> list[int]:
        """Return what whole processes that needed too much held beyond their timed steps, the least first."""
        return sorted(rejection.excess_bytes for rejection in self._known if rejection.excess_bytes)

    def foretell(self, peak_bytes: int, limit_bytes: int) -> bool:
        """Tell whether the whole process of a config with this peak would need too much, like those before it.

        One process alone may have needed more by chance: two tell.
        """
        needed = self.known_excesses
        return len(needed) >= TELLING and peak_bytes + needed[0] > limit_bytes

    @property
    def configs(self) -> frozenset[Config]:
        """Return the configs that cannot be the answer."""
        return frozenset(known.config for known in self._known)

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """Return what was wrong with each of them, by the hash of its config."""
        return {known.config.hash: known.outcome for known in self._known}

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return what else than memory was wrong, in words."""
        return tuple(known.reason for known in self._known if known.outcome is Outcome.WRONG_GRADIENT)

    def describe(self) -> list[str]:
        """Return a line for each of them."""
        return [f"{known.outcome} in an earlier session: {known.reason}" for known in self._known]

    def remaining(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials of configs that may still be the answer."""
        return [trial for trial in trials if trial.config not in self.configs]

    def add(self, rejection: Rejection) -> None:
        """Keep another one.

        Raises:
            SetupError: the folder cannot be written.
        """
        self._known.append(rejection)
        self._folder.keep_rejections(self._known)
