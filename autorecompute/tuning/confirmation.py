"""Confirms an answer in a fresh process, and learns what whole processes need."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Rejection
from autorecompute.trials.bench import CHECK_STEPS
from autorecompute.tuning.budget import Task
from autorecompute.tuning.explanations import WHOLE_PROCESS_SHARE
from autorecompute.tuning.race import TIE
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.tuning.context import TuningContext
    from autorecompute.tuning.race import Finalist


BEFORE_TRAINING = " before its first step: what loads the model, or exports it, takes more than training"

TELLING = 2
"""Whole processes that needed too much, before others are taken to need as much more than their steps."""

PATIENCE, PATIENCE_TO_LEARN = 4.0, 1.0
"""The search has to have taken so many times what a confirmation costs before the first one: a fifth of the time at
most goes into answers that may be overtaken. Where a whole process tells what all others need, waiting costs more than
the process: trials that are held against a wrong guess are wasted."""

USABLE_STEPS = 40
"""After so many steps of the training there should be an answer that may be used."""

SHORTEST_SEARCH_SECONDS = 20.0
"""A search that is stopped before has lost little."""

GROWTH = 3.0
"""Each further one waits for so many times as long."""


class Confirmer:
    """Confirms the configs of a study, each once, and knows those that cannot be its answer, over all sessions.

    What whole processes need gives the limit for the peaks of trials. It begins with a guess: they are taken to need as
    much more as the one without recompute held beyond its tensors. Once a whole process has run, its figure counts.

    Whatever writes raises ``SetupError`` where the folder cannot be written.
    """

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self.rejections = context.folder.rejections()
        """Finalists that cannot be the answer."""
        self.confirmed = {best.config: best for best in context.folder.confirmed()}
        self.failures: dict[Config, str] = {}
        """Why configs were not confirmed in this session that may be confirmed in the next one, in words."""
        self.last_process: Config | None = None
        """The config of the last process since the decision began."""
        self._began_seconds, self._early = time.monotonic(), 0
        self._least_excess, self._guesses, self._has_told = 0, True, False

    @property
    def best(self) -> Best | None:
        """Return the fastest of the confirmed configs."""
        known = list(self.confirmed.values())
        has_all = all(best.relative_throughput is not None for best in known)
        return max(
            known,
            key=lambda best: (best.relative_throughput or 0.0) if has_all else best.samples_per_second,
            default=None,
        )

    @property
    def rejected(self) -> frozenset[Config]:
        """Return the configs that cannot be the answer."""
        return frozenset(known.config for known in self.rejections)

    def remaining(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials of configs that may still be the answer."""
        rejected = self.rejected
        return [trial for trial in trials if trial.config not in rejected]

    @property
    def _excesses(self) -> list[int]:
        """Return the bytes beyond their timed steps of whole processes that needed too much, the least first."""
        return sorted(known.excess_bytes for known in self.rejections if known.excess_bytes)

    def _excess_bytes(self, trials: Sequence[Trial]) -> int | None:
        """Return the bytes that whole processes held beyond the peak of their trial; ``None`` where none has run.

        Of those that held the limit the usual one tells, as one may have held more by chance. Those that broke it tell
        less: of them the one that held most counts.
        """
        peaks = {trial.config: trial.measurement.peak_bytes for trial in trials}
        confirmed = [best.peak_bytes - (peaks.get(best.config) or best.peak_bytes) for best in self.confirmed.values()]
        return statistics.median_low(confirmed) if confirmed else max(self._excesses, default=None)

    def limit(self, trials: Sequence[Trial]) -> int:
        """Return the bytes left for the live tensors of a trial after these trials."""
        limit_bytes = self._context.problem.limit_bytes
        own_bytes = self._own_bytes(trials)
        if self._least_excess or own_bytes is None:
            return limit_bytes - self._least_excess
        seen_bytes = self._excess_bytes(trials)
        if seen_bytes is not None:
            return limit_bytes - max(seen_bytes, 0)
        return limit_bytes - (own_bytes if self._guesses else 0)

    def hold(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return trials under their limit; none fits whose whole process was seen to need too much."""
        limit_bytes, beyond = self.limit(trials), {known.config for known in self.rejections if known.excess_bytes}
        own_bytes = {
            trial.config: (trial.measurement.peak_bytes or 0) - 1 for trial in trials if trial.config in beyond
        }
        return [trial.under(min(limit_bytes, own_bytes.get(trial.config, limit_bytes))) for trial in trials]

    def is_guess(self, trials: Sequence[Trial]) -> bool:
        """Tell whether the limit rests on a guess, or on one whole process that held more than a guess would allow."""
        if self._least_excess or self._own_bytes(trials) is None:
            return False
        limit_bytes = self._context.problem.limit_bytes
        seen_bytes = self._excess_bytes(trials)
        if seen_bytes is None:
            return self.limit(trials) < limit_bytes
        told = len(self.confirmed) + len(self._excesses)
        return told < TELLING and seen_bytes > round(WHOLE_PROCESS_SHARE * limit_bytes)

    def stop_guessing(self, *, learns: bool = False) -> int:
        """Leave no room in the limit but what whole processes were seen to need.

        Where it ``learns``, that is the least excess of those that needed too much, which it returns.
        """
        self._guesses = False
        if learns:
            self._least_excess = min(self._excesses, default=0)
        return self._least_excess

    def leanest_beyond(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the trial of least peak where the guess leaves room for none: its process tells what is needed."""
        is_known = self.confirmed or len(self._excesses) >= TELLING
        left_bytes, able = self.limit(trials), self.remaining(trials)
        if not self._guesses or is_known or any(trial.under(left_bytes).fits for trial in able):
            return None
        fitting = [trial for trial in (trial.under(self._context.problem.limit_bytes) for trial in able) if trial.fits]
        return min(fitting, key=lambda trial: trial.measurement.peak_bytes or 0, default=None)

    def _own_bytes(self, trials: Sequence[Trial]) -> int | None:
        """Return the bytes of the process without recompute beyond its tensors; ``None`` where nothing tells."""
        # One that was lost, as some are in a study that is gone on with or shared, tells nothing, and the next one may.
        told = (trial for trial in trials if trial.config.is_none and trial.measurement.resident_bytes is not None)
        baseline = next(told, None)
        if baseline is None:
            return None
        # A trial's process has its free pages taken away. A training keeps them, about as much as was left here.
        own_bytes = baseline.measurement.untold_bytes + self._context.detection.left_bytes
        limit_bytes = self._context.problem.limit_bytes
        own_bytes = min(own_bytes, round(WHOLE_PROCESS_SHARE * limit_bytes))  # glibc may have kept far more by chance
        if not self._has_told and not baseline.under(limit_bytes - own_bytes).fits:
            room = format_bytes(own_bytes)
            self._context.note(f"leaving {room} of the limit for what a process holds beyond its tensors")
        self._has_told = True
        return own_bytes

    def foretells_excess(self, finalist: Finalist) -> bool:
        """Tell whether the whole process of a finalist would need too much, like those before it.

        One process alone may have needed more by chance: two tell.
        """
        needed = self._excesses
        return len(needed) >= TELLING and finalist.peak_bytes + needed[0] > self._context.problem.limit_bytes

    def needs(self, config: Config) -> tuple[Task, ...]:
        """Return the tasks before the config is confirmed; nothing where it is."""
        if config in self.confirmed:
            return ()
        return (Task.CONFIRMATION,) if config.is_none else (Task.CHECK, Task.CONFIRMATION)

    def confirm(self, finalist: Finalist) -> Best | None:
        """Return the config with the figures of its fresh process; ``None`` with a note where it was not confirmed."""
        config = finalist.trial.config
        known = self.confirmed.get(config)
        if known is None:
            self.last_process = config
            self.failures.pop(config, None)
            known = self._prove(finalist, self._context.detection.space.describe(config))
        return None if known is None else self._update(known, finalist)

    def confirm_if_due(self, finalist: Finalist, reserve_seconds: float, *, teaches: bool) -> bool:
        """Confirm the best so far where it is new and time or steps enough were spent; tell whether it was.

        A confirmation ends the script and starts it twice: by itself, and for the trials after it. So it has to be due.
        The first one is before the next trial may take it beyond ``USABLE_STEPS``.

        ``reserve_seconds`` have to be left after it. Where the process teaches the limit of all trials, the config may
        be no better than what was confirmed before.
        """
        tasks = self.needs(finalist.trial.config)
        if not tasks or not (teaches or self._is_news(finalist)):
            return False
        price, budget = (*tasks, Task.START), self._context.budget
        patience = PATIENCE_TO_LEARN if teaches else PATIENCE
        patience_seconds = max(patience * budget.expect(*price), SHORTEST_SEARCH_SECONDS) * GROWTH**self._early
        is_patient = self._is_first_due() or time.monotonic() - self._began_seconds >= patience_seconds
        if not is_patient or not budget.allows(*price, Task.TRIAL, reserve_seconds=reserve_seconds):
            return False
        best = self.confirm(finalist)
        # What was run to learn from is overtaken soon, and the next one is due as if it had not been.
        self._early += best is None or not teaches
        return best is not None

    def _is_first_due(self) -> bool:
        """Tell whether nothing is confirmed, and after another trial it would be late for that."""
        if self.confirmed or self.rejections or self.failures:
            return False
        effort = self._context.watched_effort
        after_trial = self._context.bench.steps + effort.warmup + 2 * effort.steps
        return after_trial + CHECK_STEPS + effort.watched_steps > USABLE_STEPS

    def _is_news(self, finalist: Finalist) -> bool:
        best = self.best
        if best is None:
            return True
        known, found = best.relative_throughput, finalist.relative_throughput
        if known is None or found is None:
            # Where the batch does not run without recompute, nothing but the figures themselves can be compared.
            known, found = best.samples_per_second, finalist.trial.measurement.samples_per_second or 0.0
        return found > known * (1 + TIE)

    def learn(self, standings: Sequence[Finalist]) -> None:
        """Take what a race tells of configs that were confirmed before it: single trials are compared with it else."""
        for finalist in standings:
            known = self.confirmed.get(finalist.trial.config)
            if known is not None and finalist.ratios:
                self._update(known, finalist)

    def _update(self, known: Best, finalist: Finalist) -> Best:
        # What the config is beside no recompute may be better known by now than when it was confirmed.
        low, high = finalist.spread or (None, None)
        best = replace(known, relative_throughput=finalist.relative_throughput, relative_low=low, relative_high=high)
        self.confirmed[known.config] = best
        self._context.folder.keep_confirmed(list(self.confirmed.values()))
        return best

    def _reject(self, rejection: Rejection) -> None:
        self.rejections.append(rejection)
        self._context.folder.keep_rejections(self.rejections)

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
        context, config, limit_bytes = self._context, finalist.trial.config, self._context.problem.limit_bytes
        context.note(f"confirming in a fresh process: {description}")
        environment = context.emit(config)
        measurement = self._start(environment)
        if measurement.outcome is Outcome.LOST and context.budget.allows_late(Task.CONFIRMATION):
            measurement = self._start(environment)
        outcome, held_bytes = measurement.under(limit_bytes).outcome, measurement.peak_bytes
        if outcome is Outcome.OK and held_bytes is not None and measurement.samples_per_second is not None:
            return Best(
                config=config,
                description=description,
                batch=context.problem.batch,
                accumulation=context.job.passes(context.problem.batch),
                samples_per_second=measurement.samples_per_second,
                relative_throughput=finalist.relative_throughput,
                peak_bytes=held_bytes,
                limit_bytes=limit_bytes,
                losses=measurement.losses,
                confirmed=True,
            )
        failure = f"{measurement.outcome}: {measurement.message}"
        if measurement.outcome is Outcome.OK:
            when = BEFORE_TRAINING if held_bytes == measurement.before_bytes else ""
            failure = f"its whole process reaches {format_bytes(held_bytes)}{when}"
        context.note(f"not confirmed: {description}: {failure}")
        reason = f"{description}: {failure}"
        if outcome.is_about_memory:
            # A process that runs out of memory leaves no peak, only the fact that it needed more than the limit. The
            # usual share lets a second search begin below the steps of this config, not at them.
            if held_bytes is None:
                held_bytes = limit_bytes + round(finalist.peak_bytes * WHOLE_PROCESS_SHARE)
            excess_bytes = held_bytes - finalist.peak_bytes
            self._reject(Rejection(config=config, outcome=outcome, reason=reason, excess_bytes=excess_bytes))
        else:
            # Whatever else ended the process may not end the next one.
            self.failures[config] = reason
        return None

    def _start(self, environment: dict[str, str]) -> Measurement:
        with self._context.budget.timing(Task.CONFIRMATION):
            return self._context.watch(environment, self._context.settings.batch)

    def _check_gradients(self, config: Config, description: str) -> GradientCheck | None:
        if config.is_none:
            return None
        check = self._compare(config)
        if not check.steps:
            # What kept the worker from comparing may not keep the next one.
            self.failures[config] = f"{description}: its gradients were not compared, {check.message}"
            self._context.note(f"not confirmed: {self.failures[config]}")
        elif not check.agrees:
            reason = f"{description} has wrong gradients{self._culprits(config)}: {check.message.rstrip('.')}"
            self._context.note(f"{Outcome.WRONG_GRADIENT}: {reason}")
            self._reject(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason))
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
