"""Confirms an answer in a fresh process, and learns what whole processes need."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Rejection, SearchEnd
from autorecompute.tuning.budget import Task
from autorecompute.tuning.explanations import WHOLE_PROCESS_SHARE
from autorecompute.tuning.race import TIE
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.result import Result
    from autorecompute.studies import Problem, StudyFolder
    from autorecompute.tuning.context import TuningContext
    from autorecompute.tuning.race import Finalist


BEFORE_TRAINING = " before its first step: what loads the model, or exports it, takes more than training"

TELLING = 2
"""Whole processes that needed too much, before others are taken to need as much more than their steps."""


class Confirmer:
    """Confirms the configs of a study, each once, whatever session of it that was in."""

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self.rejections = Rejections(context.folder)
        """Configs that cannot be the answer; those that are found out here are added."""
        self._confirmed = {best.config: best for best in context.folder.confirmed()}
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
        """Return the bytes that whole processes held beyond the peak of their trial; ``None`` where none has run.

        Of those that held the limit the usual one tells, as one may have held more by chance. Those that broke it tell
        less: of them the one that held most counts.
        """
        peaks = {trial.config: trial.measurement.peak_bytes for trial in trials}
        confirmed = [best.peak_bytes - (peaks.get(best.config) or best.peak_bytes) for best in self._confirmed.values()]
        return statistics.median_low(confirmed) if confirmed else max(self.rejections.known_excesses, default=None)

    def needs(self, config: Config) -> tuple[Task, ...]:
        """Return the tasks before the config is confirmed; nothing where it is."""
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
        return None if known is None else self._update(known, finalist)

    def learn(self, standings: Sequence[Finalist]) -> None:
        """Take what a race tells of configs that were confirmed before it: single trials are compared with it else.

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
        config, limit_bytes = finalist.trial.config, self._context.problem.limit_bytes
        outcome, held_bytes = measurement.under(limit_bytes).outcome, measurement.peak_bytes
        if outcome.is_about_memory:
            # A process that runs out of memory leaves no peak, only the fact that it needed more than the limit. The
            # usual share lets a second search begin below the steps of this config, not at them.
            if held_bytes is None:
                held_bytes = limit_bytes + round(finalist.peak_bytes * WHOLE_PROCESS_SHARE)
            excess_bytes = held_bytes - finalist.peak_bytes
            self.rejections.add(Rejection(config=config, outcome=outcome, reason=reason, excess_bytes=excess_bytes))
        else:
            # Whatever else ended the process may not end the next one.
            self._failures[config] = reason

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
            self.rejections.add(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason))
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
    """Finalists of a study that cannot be its answer, over all its runs."""

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder
        self._known = folder.rejections()

    @property
    def known_excesses(self) -> list[int]:
        """Return the bytes beyond their timed steps of whole processes that needed too much, the least first."""
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
        """Return the outcome of each of them, by the hash of its config."""
        return {known.config.hash: known.outcome for known in self._known}

    @property
    def sentences(self) -> tuple[str, ...]:
        """Return the reasons other than memory, in words."""
        return tuple(known.reason for known in self._known if known.outcome is Outcome.WRONG_GRADIENT)

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


PATIENCE, PATIENCE_TO_LEARN = 4.0, 1.0
"""The search has to have taken so many times what a confirmation costs before the first one: a fifth of the time at
most goes into answers that may be overtaken. Where a whole process tells what all others need, waiting costs more than
the process: trials that are held against a wrong guess are wasted."""

SHORTEST_SEARCH_SECONDS = 20.0
"""A search that is stopped before has lost little."""

GROWTH = 3.0
"""Each further one waits for so many times as long."""


class EarlyAnswer:
    """The answer that an interruption leaves.

    A confirmation ends the script and starts it twice: by itself, and for the trials after it. So it has to be due.
    """

    def __init__(self, context: TuningContext, confirmer: Confirmer, compose: Callable[[], Result]) -> None:
        self._context, self._confirmer, self._compose = context, confirmer, compose
        self._earlier = context.folder.result()
        self._began_seconds = time.monotonic()
        self._count = 0

    def confirm_if_due(self, finalist: Finalist, reserve_seconds: float, *, teaches: bool = False) -> Result | None:
        """Confirm the best so far where it is new and time enough was spent; the answer where it was.

        Args:
            finalist: The best so far.
            reserve_seconds: What has to be left of the time after it.
            teaches: Whether the whole process of this config tells the limit of all trials. Then it may be no better
                than what was confirmed before.
        """
        if not self._confirmer.needs(finalist.trial.config) or not (teaches or self._is_news(finalist)):
            return None
        if not self._is_due(finalist, reserve_seconds, PATIENCE_TO_LEARN if teaches else PATIENCE):
            return None
        best = self._confirmer.confirm(finalist)
        # What was run to learn from is overtaken soon, and the next one is due as if it had not been.
        self._count += best is None or not teaches
        return self.keep(SearchEnd.INTERRUPTED) if best is not None else None

    def keep(self, search_end: SearchEnd) -> Result:
        """Write down the answer so far; nothing where the user stopped it and nothing was confirmed.

        Raises:
            SetupError: the study cannot be written.
        """
        result = self._compose().ending(search_end)
        if self._earlier is not None and _says_more(self._earlier, result):
            result = _brought_up_to_date(self._earlier, result)
        if result.best is not None or search_end is SearchEnd.TIME:
            self.write(result)
        return result

    def write(self, result: Result) -> None:
        """Write an answer down, unless it takes away one that a training found and that may yet be confirmed.

        Raises:
            SetupError: the study cannot be written.
        """
        if not (result.search_end.is_early and result.best is None and _is_to_be_confirmed(self._earlier, result)):
            self._context.folder.finish(result)

    def _is_news(self, finalist: Finalist) -> bool:
        best = self._confirmer.best
        if best is None:
            return True
        known, found = best.relative_throughput, finalist.relative_throughput
        if known is None or found is None:
            # Where the batch does not run without recompute, nothing but the figures themselves can be compared.
            known, found = best.samples_per_second, finalist.trial.measurement.samples_per_second or 0.0
        return found > known * (1 + TIE)

    def _is_due(self, finalist: Finalist, reserve_seconds: float, patience: float) -> bool:
        price = (*self._confirmer.needs(finalist.trial.config), Task.START)
        patience_seconds = (
            max(patience * self._context.budget.expect(*price), SHORTEST_SEARCH_SECONDS) * GROWTH**self._count
        )
        is_patient = time.monotonic() - self._began_seconds >= patience_seconds
        return is_patient and self._context.budget.allows(*price, Task.TRIAL, reserve_seconds=reserve_seconds)


def _says_more(earlier: Result, result: Result) -> bool:
    """Tell whether an earlier session came further with the same winner: it was compared, or has knobs."""
    if earlier.best is None or result.best is None:
        return False
    # Knobs that were kept may have brought another config than the one that won.
    is_same = earlier.best.config == result.best.config or bool(earlier.best.knobs)
    return is_same and earlier.compared and earlier.best.confirmed


def _brought_up_to_date(earlier: Result, result: Result) -> Result:
    """Return an earlier answer with what the trials since then tell."""
    return replace(
        earlier,
        search_end=result.search_end,
        baseline=result.baseline,
        presets=result.presets,
        expected={name: one for name, one in earlier.expected.items() if result.presets[name].outcome is None},
        reserve_bytes=result.reserve_bytes,
        short_of_reserve=result.short_of_reserve,
        rejected=result.rejected,
        warnings=result.warnings,
        trials=result.trials,
        wall_seconds=result.wall_seconds,
    )


def _is_to_be_confirmed(earlier: Result | None, result: Result) -> bool:
    """Tell whether the earlier answer has not been confirmed yet, and nothing that is known now speaks against it."""
    best = earlier.best if earlier is not None else None
    return best is not None and not best.confirmed and best.config.hash not in result.rejected


class TrialLimit:
    """The limit for the peaks of trials.

    It begins with a guess: whole processes are taken to need as much more as the one without recompute held beyond its
    tensors. Once a whole process has run, its figure counts. Calling it with the trials so far gives bytes.

    Args:
        context: What the tuning works with.
        confirmer: Knows the whole processes that held the limit, and those that did not.
    """

    def __init__(self, context: TuningContext, confirmer: Confirmer) -> None:
        self._context, self._confirmer, self._rejections = context, confirmer, confirmer.rejections
        self._excess_bytes, self._guesses, self._has_told = 0, True, False

    def __call__(self, trials: Sequence[Trial]) -> int:
        """Return the bytes left for live tensors after these trials."""
        limit_bytes = self._context.problem.limit_bytes
        own_bytes = self._own_bytes(trials)
        if self._excess_bytes or own_bytes is None:
            return limit_bytes - self._excess_bytes
        seen_bytes = self._confirmer.excess_bytes(trials)
        if seen_bytes is not None:
            return limit_bytes - max(seen_bytes, 0)
        return limit_bytes - (own_bytes if self._guesses else 0)

    def is_guess(self, trials: Sequence[Trial]) -> bool:
        """Tell whether the limit rests on a guess, or on one whole process that held more than a guess would allow."""
        if self._excess_bytes or self._own_bytes(trials) is None:
            return False
        limit_bytes = self._context.problem.limit_bytes
        seen_bytes = self._confirmer.excess_bytes(trials)
        if seen_bytes is None:
            return self(trials) < limit_bytes
        told = len(self._confirmer.configs) + len(self._rejections.known_excesses)
        return told < TELLING and seen_bytes > round(WHOLE_PROCESS_SHARE * limit_bytes)

    def stop_guessing(self) -> None:
        """Leave what whole processes that held the limit were seen to need, and nothing where none was."""
        self._guesses = False

    def learn(self) -> int:
        """Guesses no more, and takes what whole processes were seen to need where that was too much; gives it."""
        self._excess_bytes = min(self._rejections.known_excesses, default=0)
        self.stop_guessing()
        return self._excess_bytes

    def leanest_beyond(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the trial of least peak where the guess leaves room for none: its process tells what is needed."""
        is_known = self._confirmer.configs or len(self._rejections.known_excesses) >= TELLING
        left_bytes = self(trials)
        able = self._rejections.remaining(trials)
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
