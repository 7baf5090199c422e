"""One tuning, from detection to the answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import emission_of
from autorecompute.errors import NothingFitsError, ScriptError, TooLittleTimeError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.result import SearchEnd
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.folder import write_atomically
from autorecompute.studies.storage import TrialStore
from autorecompute.studies.transfer import Tuned
from autorecompute.trials.bench import Effort
from autorecompute.trials.lock import hold_device
from autorecompute.trials.signals import OutOfTime, ignoring_interrupts
from autorecompute.tuning.answer.confirmation import Confirmer
from autorecompute.tuning.answer.early import EarlyAnswer
from autorecompute.tuning.answer.holding import hold, judge
from autorecompute.tuning.answer.judgement import Judgement
from autorecompute.tuning.answer.no_fit import OUT_OF_TIME, explain_early_end, explain_no_fit
from autorecompute.tuning.answer.rejections import Rejections
from autorecompute.tuning.binding import bind
from autorecompute.tuning.budget import Budget, Task
from autorecompute.tuning.knobs.turning import turn_knobs
from autorecompute.tuning.limit import choose_limit
from autorecompute.tuning.losses import settled, surviving_loss
from autorecompute.tuning.pace import Pace
from autorecompute.tuning.reference import Reference
from autorecompute.tuning.searching import Searching
from autorecompute.tuning.transfer import look_around
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Detection
    from autorecompute.result import Result, Transfer
    from autorecompute.search import Prior, Proposal, Searcher
    from autorecompute.tuning.settings import Workplace

SEARCHES = 2
"""A second search follows where everything that fits in its steps does not fit as a whole process."""

REFERENCE_STEPS = 3


class Tuner:
    """Tunes one job and leaves a finished study.

    Args:
        place: What it works with.
    """

    def __init__(self, place: Workplace) -> None:
        self._job, self._bench, self._folder = place.job, place.bench, place.folder
        self._settings, self._progress = place.settings, place.progress
        self._place = place
        began = self._settings.began_seconds
        self._budget = Budget(self._settings.timeout_seconds, time.monotonic() if began is None else began)
        self._pace = Pace(self._budget, self._bench)
        self.so_far: Result | None = None
        """The answer that an interruption leaves, or that an earlier session left."""
        self._transfer: Transfer | None = None
        self._prior: Prior | None = None
        self._number = 0
        self._warned: set[str] = set()

    def run(self) -> Result:
        """The study's answer; measured now, or read where the identical problem was finished before.

        Raises:
            KeyboardInterrupt: the user stopped it; what was confirmed until then is in ``so_far`` and in the study.
            NothingFitsError: no config holds the limit, or none was confirmed in time; the message tells what it
                would take.
            TooLittleTimeError: not even a trial ended in time.
            ScriptError: the script fails by itself.
            SetupError: the installation lacks something, or the study cannot be written.
            UsageError: the study holds another problem, or the batch cannot reach the model.
        """
        try:
            with self._budget.enforced():
                return self._answer()
        except OutOfTime:
            if self.so_far is None:
                raise TooLittleTimeError(OUT_OF_TIME) from None
            return self.so_far
        except KeyboardInterrupt:
            with ignoring_interrupts():
                raise

    def _answer(self) -> Result:
        with self._budget.timing(Task.START):
            detection = self._bench.detect()
        limit_bytes = self._settings.limit_bytes or choose_limit(detection, self._folder, self._progress.note)
        problem = Problem.of(detection, limit_bytes, wrap=self._job.wrap)
        command = self._job.plain_command(self._settings.batch)
        is_new = bind(self._folder, problem, command, Sizes.of(detection))
        store = TrialStore(self._folder.database, self._folder.name_in_database, detection.space, limit_bytes)
        self._folder.require_trials(len(store.trials))
        result = self._folder.result()
        if not self._settings.is_fresh and (result is None or can_go_on(result, self._settings.max_trials)):
            tuned = Tuned(problem=problem, sizes=Sizes.of(detection), command=tuple(command))
            self._transfer, self._prior = look_around(tuned, self._folder, store, detection, is_new=is_new)
            if self._transfer is not None:
                self._progress.note(self._transfer.sentence)
            result = self._folder.result()
        self._progress.detected(
            detection,
            limit_bytes,
            known_trials=store.trials,
            budget=self._settings.max_trials,
            deadline_seconds=self._budget.deadline_seconds,
        )
        self._leave(result)
        if result is not None and not can_go_on(result, self._settings.max_trials):
            self._progress.note("this problem was solved before: its answer stands")
        else:
            with hold_device(detection.device, f"study {self._folder.path}", self._progress.note):
                self._take_over(store, detection)
                result = self._measure(store, detection, problem)
            self._leave(result)
        result = turn_knobs(
            self._place, self._budget, detection, problem, store.trials, result=result, keep=self._leave
        )
        if result.best is None:
            explain = explain_early_end if result.search_end.is_early else explain_no_fit
            known = (result.unconfirmed, self._folder.rejections())
            raise NothingFitsError(explain(store.trials, detection, limit_bytes, *known))
        return result

    def _leave(self, result: Result | None) -> None:
        self.so_far = result if result is not None and result.best is not None else None

    def _take_over(self, store: TrialStore, detection: Detection) -> None:
        """Keeps the trial that an earlier session took with it; only the one that holds the device knows it is over."""
        lost = self._folder.trial_in_progress()
        if lost is not None and lost.number == len(store.trials):
            store.add(lost)
            self._keep(lost, detection)
            self._progress.note(f"the last session went away while it measured {lost.description}")
        self._folder.end_trial()

    def _measure(self, store: TrialStore, detection: Detection, problem: Problem) -> Result:
        if detection.resting_bytes > problem.limit_bytes:
            raise NothingFitsError(
                f"The script holds {format_bytes(detection.resting_bytes)} before its first step, above the limit of "
                f"{format_bytes(problem.limit_bytes)}: no recompute can help. Raise --memory-limit, or train a "
                "smaller model."
            )
        rejections = Rejections(self._folder)
        for rejection in rejections.describe():
            self._progress.note(rejection)
        confirmer = Confirmer(self._place, rejections, self._budget, detection, problem)
        judgement = Judgement(self._place, rejections, confirmer, self._budget)

        def compose_so_far() -> Result:
            trials = [hold(trial, problem.limit_bytes) for trial in store.trials]
            return self._sign(judgement.compose_early(trials, detection, problem), store)

        early = EarlyAnswer(self._folder, confirmer, self._budget, compose_so_far)
        try:
            result = self._solve(store, detection, problem, judgement=judgement, rejections=rejections, early=early)
        except KeyboardInterrupt as stop:
            is_late = isinstance(stop, OutOfTime)
            with ignoring_interrupts():
                result = early.keep(SearchEnd.TIME if is_late else SearchEnd.INTERRUPTED)
                self._leave(result)
            if is_late:
                return result
            raise
        self._folder.finish(result)
        return result

    def _sign(self, result: Result, store: TrialStore) -> Result:
        return replace(result, wall_seconds=store.seconds, transferred_from=self._transfer)

    def _solve(  # noqa: PLR0913  (the parts of one tuning)
        self,
        store: TrialStore,
        detection: Detection,
        problem: Problem,
        *,
        judgement: Judgement,
        rejections: Rejections,
        early: EarlyAnswer,
    ) -> Result:
        def after_trial(trials: list[Trial]) -> None:
            result = early.confirm_if_due(rejections.remaining(trials), self._pace.reserve_seconds(trials))
            self.so_far = result or self.so_far

        limit_bytes, searching = problem.limit_bytes, Searching(self._place, detection, self._prior, self._budget)
        for search in range(SEARCHES):
            searcher = searching.begin(limit_bytes)
            search_end = self._search(
                searcher, store, detection, problem, limit_bytes=limit_bytes, after_trial=after_trial
            )
            trials = [hold(trial, limit_bytes) for trial in store.trials]
            steps = searcher.expect_steps(trials)
            result = judgement.decide(trials, detection, problem, steps=steps, search_seconds=store.seconds)
            if result.best is not None or not rejections.excess_bytes or search == SEARCHES - 1:
                break
            # Whole processes need more than the steps that were measured: search again with that much less.
            limit_bytes = problem.limit_bytes - rejections.excess_bytes
            self._progress.note(
                f"whole processes need {format_bytes(rejections.excess_bytes)} more: searching below that"
            )
        # What there was no time for is made up for by the next session, be the search at its end or not.
        return self._sign(replace(result, search_end=search_end if result.compared else SearchEnd.TIME), store)

    def _search(  # noqa: PLR0913  (what a trial needs)
        self,
        searcher: Searcher,
        store: TrialStore,
        detection: Detection,
        problem: Problem,
        *,
        limit_bytes: int,
        after_trial: Callable[[list[Trial]], None],
    ) -> SearchEnd:
        failed = any(
            trial.config.is_none and not trial.measurement.outcome.is_measured for trial in settled(store.trials)
        )
        # No longer than a trial: a script may have just enough steps for one.
        effort = Effort(warmup=1, steps=min(self._settings.effort.steps, REFERENCE_STEPS))
        reference = Reference(self._bench, effort, is_known_to_fail=failed)
        while len(trials := settled(store.trials)) < self._settings.max_trials:
            held = [hold(trial, limit_bytes) for trial in trials]
            proposal = searcher.propose(held)
            if proposal is None:
                return SearchEnd.NOTHING_LEFT
            if not self._pace.allows_trial(held):
                return SearchEnd.TIME
            description, self._number = detection.space.describe(proposal.config), len(store.trials)
            self._progress.trial_begins(self._number, description, proposal.reason, proposal.prediction)
            with surviving_loss(self._folder, self._number, proposal, description), self._budget.timing(Task.TRIAL):
                trial = self._try(proposal, description, problem.limit_bytes, reference)
                store.add(trial)
                self._keep(trial, detection)
            self._progress.trial_ended(trial)
            for warning in trial.measurement.warnings:
                self._warn(warning)
            after_trial([hold(trial, limit_bytes) for trial in settled(store.trials)])
        return SearchEnd.TRIALS

    def _warn(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._progress.note(f"warning: {warning}")

    def _try(self, proposal: Proposal, description: str, limit_bytes: int, reference: Reference) -> Trial:
        is_reference = proposal.config.is_none
        if not is_reference:
            reference.seconds()
        began = time.monotonic()
        measurement = judge(self._bench.measure(proposal.config, self._settings.effort), limit_bytes)
        elapsed = time.monotonic() - began
        if is_reference:
            self._check_script(measurement)
            reference.note(measurement)
        return Trial(
            number=self._number,
            config=proposal.config,
            description=description,
            reason=proposal.reason,
            measurement=measurement,
            reference_seconds=reference.seconds_beside(measurement),
            prediction=proposal.prediction,
            overhead_seconds=elapsed - measurement.warmup_seconds - sum(measurement.step_seconds),
        )

    def _keep(self, trial: Trial, detection: Detection) -> None:
        emission = emission_of(detection.versions["backend"])
        plans_file = self._folder.trial(trial.number) / "plans.json"
        environment = emission.environment_for(
            trial.config, ort_version=detection.versions["onnxruntime"], plans_file=plans_file
        )
        command = self._job.plain_command(self._settings.batch)
        self._folder.keep_trial(trial, command, environment, self._bench.take_output())
        write_atomically(plans_file, emission.plans_file_text(trial.config))

    def _check_script(self, measurement: Measurement) -> None:
        outcome = measurement.outcome
        if not outcome.is_measured and not outcome.is_about_memory and outcome is not Outcome.LOST:
            trace = "".join(f"\n  {line}" for line in measurement.trace)
            raise ScriptError(
                f"The script fails without any recompute. {measurement.message}{trace}\n"
                f"Outcome: {outcome}. Its output: {self._bench.log}"
            )


def can_go_on(result: Result, max_trials: int) -> bool:
    """Whether the search that came to this answer ended for want of trials or time, and has some now."""
    if result.search_end is SearchEnd.TRIALS:
        return result.trials < max_trials
    return result.search_end.is_early
