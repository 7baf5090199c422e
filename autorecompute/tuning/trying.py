"""The search of a tuning: asks for configs and measures them, until nothing is left to gain."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autorecompute.backends.registry import render
from autorecompute.errors import ScriptError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.result import SearchEnd
from autorecompute.studies.writing import write_files
from autorecompute.trials.bench import Effort
from autorecompute.tuning.answer.holding import hold, judge
from autorecompute.tuning.budget import Task
from autorecompute.tuning.losses import settled
from autorecompute.tuning.reference import Reference

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Detection
    from autorecompute.search import Proposal, Searcher
    from autorecompute.studies import Problem
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.ledger import Ledger
    from autorecompute.tuning.pace import Pace
    from autorecompute.tuning.settings import Workplace

REFERENCE_STEPS = 3


class Trying:
    """Measures what a searcher proposes.

    Args:
        place: What it works with.
        ledger: Where trials are kept.
        detection: What the job is.
        problem: What has to be solved.
        budget: The time there is.
        pace: Whether there is some for another trial.
    """

    def __init__(  # noqa: PLR0913  (what a trial needs)
        self, place: Workplace, ledger: Ledger, detection: Detection, problem: Problem, *, budget: Budget, pace: Pace
    ) -> None:
        self._job, self._bench, self._folder = place.job, place.bench, place.folder
        self._settings, self._progress = place.settings, place.progress
        self._ledger, self._detection, self._problem = ledger, detection, problem
        self._budget, self._pace = budget, pace
        self._warned: set[str] = set()

    def search(self, searcher: Searcher, limit_bytes: int, after_trial: Callable[[list[Trial]], None]) -> SearchEnd:
        """Measures until nothing is left to gain, for nobody who works on the study, or trials or time are used up.

        Args:
            searcher: Who proposes.
            limit_bytes: What is held against each peak.
            after_trial: Told all trials after each of them.
        """
        reference: Reference | None = None
        while True:
            for trial in self._ledger.refresh():
                self._progress.trial_ended(trial)
            proposal = self._propose(searcher, limit_bytes)
            if isinstance(proposal, SearchEnd):
                if self._ledger.wait():
                    continue
                return proposal
            # Not before: whether the batch runs without recompute may be what another worker is finding out.
            reference = reference or self._begin_reference()
            if not proposal.config.is_none:
                self._require_script(reference)
            if self._measure(proposal, reference):
                after_trial([hold(trial, limit_bytes) for trial in settled(self._ledger.trials)])

    def keep(self, trial: Trial) -> None:
        """Fills the folder of a trial that ended here."""
        detection = self._detection
        rendered = render(trial.config, (), detection.versions, self._folder.trial(trial.number))
        command = self._job.plain_command(self._settings.batch)
        self._folder.keep_trial(trial, command, rendered.variables, self._bench.take_output())
        write_files(rendered.files)

    def _begin_reference(self) -> Reference:
        failed = any(
            trial.config.is_none and not trial.measurement.outcome.is_measured for trial in settled(self._ledger.trials)
        )
        # No longer than a trial: a script may have just enough steps for one.
        effort = Effort(warmup=1, steps=min(self._settings.effort.steps, REFERENCE_STEPS))
        return Reference(self._bench, effort, is_known_to_fail=failed)

    def _propose(self, searcher: Searcher, limit_bytes: int) -> Proposal | SearchEnd:
        if self._ledger.is_closing:
            return SearchEnd.NOTHING_LEFT
        held = [hold(trial, limit_bytes) for trial in settled(self._ledger.trials)]
        claimed = self._ledger.claimed
        if len(held) + len(claimed) >= self._settings.max_trials:
            return SearchEnd.TRIALS
        proposal = searcher.propose(held, claimed)
        if proposal is None:
            return SearchEnd.NOTHING_LEFT
        return proposal if self._pace.allows_trial(held) else SearchEnd.TIME

    def _measure(self, proposal: Proposal, reference: Reference) -> bool:
        """Whether the proposal became a trial; not so where another worker has its config."""
        description = self._detection.space.describe(proposal.config)
        with self._ledger.trying(proposal, description) as number:
            if number is None:
                return False
            self._progress.trial_begins(number, description, proposal.reason, proposal.prediction)
            with self._budget.timing(Task.TRIAL):
                trial = self._ledger.keep(self._try(number, proposal, description, reference))
                if trial is None:
                    return False
                self.keep(trial)
        self._progress.trial_ended(trial)
        for warning in trial.measurement.warnings:
            self._warn(warning)
        return True

    def _try(self, number: int, proposal: Proposal, description: str, reference: Reference) -> Trial:
        is_reference = proposal.config.is_none
        if not is_reference:
            reference.seconds()
        began = time.monotonic()
        measurement = judge(self._bench.measure(proposal.config, self._settings.effort), self._problem.limit_bytes)
        elapsed = time.monotonic() - began
        if is_reference:
            self._check_script(measurement)
            reference.note(measurement)
        return Trial(
            number=number,
            config=proposal.config,
            description=description,
            reason=proposal.reason,
            measurement=measurement,
            reference_seconds=reference.seconds_beside(measurement),
            prediction=proposal.prediction,
            overhead_seconds=max(elapsed - measurement.warmup_seconds - sum(measurement.step_seconds), 0.0),
        )

    def _require_script(self, reference: Reference) -> None:
        # What fails on this worker's host alone would be measured as a failure of every config, for all workers.
        if self._ledger.store is None and (first := reference.first()) is not None:
            self._check_script(first)

    def _check_script(self, measurement: Measurement) -> None:
        outcome = measurement.outcome
        if not outcome.is_measured and not outcome.is_about_memory and outcome is not Outcome.LOST:
            trace = "".join(f"\n  {line}" for line in measurement.trace)
            raise ScriptError(
                f"The script fails without any recompute. {measurement.message}{trace}\n"
                f"Outcome: {outcome}. Its output: {self._bench.log}"
            )

    def _warn(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._progress.note(f"warning: {warning}")
