"""One tuning, from detection to the answer."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends import emission_of
from autorecompute.errors import NothingFitsError, ScriptError, UsageError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.result import SearchEnd
from autorecompute.search import GreedySearcher
from autorecompute.studies import Problem
from autorecompute.studies.folder import write_atomically
from autorecompute.studies.storage import TrialStore
from autorecompute.trials.bench import Effort
from autorecompute.trials.lock import hold_device
from autorecompute.tuning.judgement import Judgement, explain_no_fit
from autorecompute.tuning.limit import choose_limit
from autorecompute.tuning.losses import settled, surviving_loss
from autorecompute.tuning.reference import Reference
from autorecompute.tuning.rejections import Rejections
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from autorecompute.measurement import Detection
    from autorecompute.result import Result
    from autorecompute.search import Proposal
    from autorecompute.tuning.settings import Workplace

SEARCHES = 2
"""A second search follows where everything that fits in its steps does not fit as a whole process."""

REFERENCE_STEPS = 3

RACE_SHARE = 0.5
"""Of the time that the search took, so much may be spent on being sure about the last few percent."""


class Tuner:
    """Tunes one job and leaves a finished study.

    Args:
        place: What it works with.
    """

    def __init__(self, place: Workplace) -> None:
        self._job, self._bench, self._folder = place.job, place.bench, place.folder
        self._settings, self._progress = place.settings, place.progress
        self._place = place
        timeout = self._settings.timeout_seconds
        self._deadline_seconds = math.inf if timeout is None else time.monotonic() + timeout
        self._number = 0
        self._warned: set[str] = set()

    def run(self) -> Result:
        """The study's answer; measured now, or read where the identical problem was finished before.

        Raises:
            NothingFitsError: no config holds the limit; the message tells the least peak and what it would take.
            ScriptError: the script fails by itself.
            SetupError: the installation lacks something, or the study cannot be written.
            UsageError: the study holds another problem, or the batch cannot reach the model.
        """
        detection = self._bench.detect()
        limit_bytes = self._settings.limit_bytes or choose_limit(detection, self._folder, self._progress.note)
        problem = Problem.of(detection, limit_bytes, wrap=self._job.wrap)
        self._bind(problem)
        store = TrialStore(self._folder.database, self._folder.name_in_database, detection.space, limit_bytes)
        self._folder.require_trials(len(store.trials))
        self._progress.detected(
            detection, limit_bytes, known_trials=len(store.trials), budget=self._settings.max_trials
        )
        result = self._folder.result()
        if result is not None and not self._can_go_on(result):
            self._progress.note("this problem was solved before: its answer stands")
        if result is None or self._can_go_on(result):
            with hold_device(detection.device, f"study {self._folder.path}", self._progress.note):
                self._take_over(store, detection)
                result = self._measure(store, detection, problem)
        if result.best is None:
            raise NothingFitsError(explain_no_fit(store.trials, detection, limit_bytes, result.unconfirmed))
        return result

    def _bind(self, problem: Problem) -> None:
        if not self._folder.exists():
            self._folder.begin(problem, self._job.plain_command(self._settings.batch))
            return
        differences = problem.differences(self._folder.problem())
        if differences:
            raise UsageError(
                f"Study '{self._folder.name}' holds another problem: here it is {'; '.join(differences)}. "
                "Begin a new study with --study NAME."
            )

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
        limit_bytes, rejections = problem.limit_bytes, Rejections(self._folder)
        for rejection in rejections.describe():
            self._progress.note(rejection)
        for _ in range(SEARCHES):
            search_end = self._search(store, detection, problem, limit_bytes)
            trials = [hold(trial, limit_bytes) for trial in store.trials]
            judgement = Judgement(self._place, rejections)
            result = judgement.decide(trials, detection, problem, deadline_seconds=self._race_deadline(store))
            if result.best is not None or not rejections.excess_bytes:
                break
            # Whole processes need more than the steps that were measured: search again with that much less.
            limit_bytes = problem.limit_bytes - rejections.excess_bytes
            self._progress.note(
                f"whole processes need {format_bytes(rejections.excess_bytes)} more: searching below that"
            )
        result = replace(result, search_end=search_end, wall_seconds=store.seconds)
        self._folder.finish(result)
        return result

    def _can_go_on(self, result: Result) -> bool:
        if result.search_end is SearchEnd.TRIALS:
            return result.trials < self._settings.max_trials
        return result.search_end is SearchEnd.TIME

    def _search(self, store: TrialStore, detection: Detection, problem: Problem, limit_bytes: int) -> SearchEnd:
        searcher = GreedySearcher(detection.space, budget=self._settings.max_trials, limit_bytes=limit_bytes)
        failed = any(trial.config.is_none and not trial.measurement.outcome.is_measured for trial in store.trials)
        # No longer than a trial: a script may have just enough steps for one.
        effort = Effort(warmup=1, steps=min(self._settings.effort.steps, REFERENCE_STEPS))
        reference = Reference(self._bench, effort, is_known_to_fail=failed)
        while len(trials := settled(store.trials)) < self._settings.max_trials:
            proposal = searcher.propose([hold(trial, limit_bytes) for trial in trials])
            if proposal is None:
                return SearchEnd.NOTHING_LEFT
            if not self._has_time():
                return SearchEnd.TIME
            description, self._number = detection.space.describe(proposal.config), len(store.trials)
            self._progress.trial_begins(self._number, description, proposal.reason)
            with surviving_loss(self._folder, self._number, proposal, description):
                trial = self._try(proposal, description, problem.limit_bytes, reference)
                store.add(trial)
                self._keep(trial, detection)
            self._progress.trial_ended(trial)
            for warning in trial.measurement.warnings:
                self._warn(warning)
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

    def _has_time(self) -> bool:
        return time.monotonic() < self._deadline_seconds

    def _race_deadline(self, store: TrialStore) -> float:
        return min(self._deadline_seconds, time.monotonic() + RACE_SHARE * store.seconds)


def hold(trial: Trial, limit_bytes: int) -> Trial:
    """The trial with another limit held against its peak."""
    if not trial.measurement.outcome.is_measured:
        return trial
    measurement = replace(trial.measurement, outcome=Outcome.OK, message="")
    return replace(trial, measurement=judge(measurement, limit_bytes))


def judge(measurement: Measurement, limit_bytes: int) -> Measurement:
    """The measurement with the limit held against its peak."""
    peak = measurement.peak_bytes
    if measurement.outcome is not Outcome.OK or peak is None or peak <= limit_bytes:
        return measurement
    return replace(
        measurement, outcome=Outcome.OVER_LIMIT, message=f"{format_bytes(peak - limit_bytes)} over the limit"
    )
