"""One tuning, from detection to the answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import LeftToOthers, NothingFitsError, TooLittleTimeError
from autorecompute.measurement import Outcome
from autorecompute.result import SearchEnd
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.transfer import Tuned, find_nearest
from autorecompute.trials.signals import OutOfTime, ignoring_interrupts
from autorecompute.tuning.answer.confirmation import Confirmer
from autorecompute.tuning.answer.early import EarlyAnswer
from autorecompute.tuning.answer.holding import hold
from autorecompute.tuning.answer.judgement import Judgement
from autorecompute.tuning.answer.no_fit import explain_early_end, explain_no_fit, explain_too_little_time
from autorecompute.tuning.answer.race_record import race_winner
from autorecompute.tuning.answer.rejections import Rejections
from autorecompute.tuning.budget import Budget, Task
from autorecompute.tuning.knob_search import KnobSearch
from autorecompute.tuning.ledger import Alone
from autorecompute.tuning.limit import choose_limit
from autorecompute.tuning.pace import Pace
from autorecompute.tuning.searching import Searching
from autorecompute.tuning.together import Together
from autorecompute.tuning.transfer import start_from
from autorecompute.tuning.trying import Trying
from autorecompute.tuning.waiting import holding
from autorecompute.units import format_bytes, format_count

if TYPE_CHECKING:
    from autorecompute.measurement import Detection, Trial
    from autorecompute.result import Result, Transfer
    from autorecompute.search import Prior
    from autorecompute.tuning.ledger import Ledger
    from autorecompute.tuning.settings import Workplace

SEARCHES = 2
"""A second search follows where everything that fits in its steps does not fit as a whole process."""


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
        self._ledger: Ledger = Alone(place) if place.shared is None else Together(place, place.shared)

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
        except (OutOfTime, TooLittleTimeError) as late:
            if self.so_far is not None:
                return self.so_far
            if isinstance(late, TooLittleTimeError):
                raise
            raise TooLittleTimeError(explain_too_little_time(self._budget.expect(Task.START))) from None
        except KeyboardInterrupt:
            with ignoring_interrupts():
                raise

    def _answer(self) -> Result:
        try:
            return self._answer_kept()
        finally:
            self._ledger.close()

    def _answer_kept(self) -> Result:
        with self._budget.timing(Task.START):
            detection = self._bench.detect()
        limit_bytes = self._settings.limit_bytes or choose_limit(detection, self._folder, self._progress.note)
        problem = Problem.of(detection, limit_bytes, wrap=self._job.wrap)
        command, sizes = self._job.plain_command(self._settings.batch), Sizes.of(detection)
        problem, is_new = self._ledger.begin(problem, detection, command, sizes)
        result = self._ledger.answer()
        if not self._settings.is_fresh and (result is None or result.can_go_on(self._settings.max_trials)):
            tuned = Tuned(problem=problem, sizes=sizes, command=tuple(command))
            neighbour = find_nearest(tuned, self._folder, self._progress.note)
            if neighbour is not None:
                self._transfer, self._prior = start_from(neighbour, self._folder, self._ledger.store, is_new=is_new)
                self._progress.note(self._transfer.sentence)
            result = self._ledger.answer()
        self._progress.detected(
            detection,
            problem.limit_bytes,
            known_trials=self._ledger.trials,
            budget=self._settings.max_trials,
            deadline_seconds=self._budget.deadline_seconds,
        )
        self._leave(result)
        if result is not None and not result.can_go_on(self._settings.max_trials):
            self._progress.note("this problem was solved before: its answer stands")
        else:
            with holding(detection.device, self._place):
                problem, result = self._measure(detection)
            self._leave(result)
        result = KnobSearch(self._place, self._budget, detection, problem).run(result, self._leave)
        if result.best is None:
            raise NothingFitsError(self._explain_none(result, detection, problem.limit_bytes))
        return result

    def _explain_none(self, result: Result, detection: Detection, limit_bytes: int) -> str:
        """Why there is no config to train with."""
        trials, rejections = self._ledger.trials, self._folder.rejections()
        if not result.search_end.is_early:
            return explain_no_fit(trials, detection, limit_bytes, result.unconfirmed, rejections)
        if not trials:
            return explain_too_little_time(self._budget.expect(Task.START))
        winner = race_winner(self._folder, trials, {known.config for known in rejections})
        return explain_early_end(trials, detection, limit_bytes, result.unconfirmed, rejections, winner=winner)

    def _leave(self, result: Result | None) -> None:
        self.so_far = result if result is not None and result.best is not None else None

    def _measure(self, detection: Detection) -> tuple[Problem, Result]:
        problem, taken = self._ledger.join()
        trying = Trying(self._place, self._ledger, detection, problem, budget=self._budget, pace=self._pace)
        for trial in taken:
            trying.keep(trial)
            if trial.measurement.outcome is Outcome.LOST:
                self._progress.note(f"the last session went away while it measured {trial.description}")
        if detection.resting_bytes > problem.limit_bytes:
            raise NothingFitsError(
                f"The script holds {format_bytes(detection.resting_bytes)} before its first step, above the limit of "
                f"{format_bytes(problem.limit_bytes)}: no recompute can help. Raise --memory-limit, or train a "
                "smaller model."
            )
        result = self._work(trying, detection, problem)
        while self._can_improve(result):
            self._ledger.go_on()
            result = self._work(trying, detection, problem)
        return problem, result

    def _can_improve(self, result: Result) -> bool:
        """Whether another worker answered for want of time that this one has."""
        if self._ledger.is_confirming or result.best is None or result.search_end is not SearchEnd.TIME:
            return False
        self._leave(result)
        return self._pace.allows_trial(self._ledger.trials)

    def _work(self, trying: Trying, detection: Detection, problem: Problem) -> Result:
        rejections = Rejections(self._folder)
        for rejection in rejections.describe():
            self._progress.note(rejection)
        confirmer = Confirmer(self._place, rejections, self._budget, detection, problem)
        judgement = Judgement(self._place, rejections, confirmer, self._budget)

        def compose_so_far() -> Result:
            trials = [hold(trial, problem.limit_bytes) for trial in self._ledger.trials]
            return self._sign(judgement.compose_early(trials, detection, problem))

        early = EarlyAnswer(self._folder, confirmer, self._budget, compose_so_far)
        try:
            result = self._solve(trying, detection, problem, judgement=judgement, rejections=rejections, early=early)
        except KeyboardInterrupt as stop:
            is_late = isinstance(stop, OutOfTime)
            with ignoring_interrupts():
                result = self._end_late(compose_so_far(), early) if is_late else early.keep(SearchEnd.INTERRUPTED)
                self._leave(result)
            if is_late:
                return result
            raise
        return result

    def _end_late(self, so_far: Result, early: EarlyAnswer) -> Result:
        """The answer that a worker has whose time is over; whose turn it is to give one tells the others, too.

        Raises:
            LeftToOthers: it has none, and others go on.
        """
        is_for_all = so_far.best is not None and self._ledger.is_confirming
        if not is_for_all and (told := self._leave_to_others(so_far)) is not None:
            return told
        result = early.keep(SearchEnd.TIME)
        return self._ledger.publish(result) if is_for_all else result

    def _leave_to_others(self, so_far: Result) -> Result | None:
        """Ends here where others go on; gives the answer that they may have come to at this moment.

        Raises:
            LeftToOthers: they do.
        """
        self._ledger.refresh()
        if (told := self._ledger.told()) is not None:
            return told
        if self._ledger.others:
            self.so_far = so_far.ending(SearchEnd.TIME)
            raise LeftToOthers(
                f"The time is over: {format_count(self._ledger.others, 'other worker')} "
                f"{'goes' if self._ledger.others == 1 else 'go'} on with study '{self._folder.name}', and the last one "
                "confirms. The same command gives its answer then."
            )
        return None

    def _sign(self, result: Result) -> Result:
        return replace(result, wall_seconds=self._ledger.seconds, transferred_from=self._transfer)

    def _solve(  # noqa: PLR0913  (the parts of one tuning)
        self,
        trying: Trying,
        detection: Detection,
        problem: Problem,
        *,
        judgement: Judgement,
        rejections: Rejections,
        early: EarlyAnswer,
    ) -> Result:
        def after_trial(trials: list[Trial]) -> None:
            # Of several workers each would confirm the same early, and any of them can be stopped without loss.
            if self._ledger.store is not None:
                result = early.confirm_if_due(rejections.remaining(trials), self._pace.reserve_seconds(trials))
                self.so_far = result or self.so_far

        limit_bytes, searching = problem.limit_bytes, Searching(self._place, detection, self._prior, self._budget)
        for search in range(SEARCHES):
            searcher = searching.begin(limit_bytes)
            search_end = trying.search(searcher, limit_bytes, after_trial)
            if (told := self._ledger.told()) is not None:
                return told
            trials = [hold(trial, limit_bytes) for trial in self._ledger.trials]
            steps = searcher.expect_steps(trials)
            result = judgement.decide(trials, detection, problem, steps=steps, search_seconds=self._ledger.seconds)
            if result.best is not None or not rejections.excess_bytes or search == SEARCHES - 1:
                break
            # Whole processes need more than the steps that were measured: search again with that much less.
            limit_bytes = problem.limit_bytes - rejections.excess_bytes
            self._progress.note(
                f"whole processes need {format_bytes(rejections.excess_bytes)} more: searching below that"
            )
        # What there was no time for is made up for by the next session, be the search at its end or not.
        result = self._sign(result.ending(search_end if result.compared else SearchEnd.TIME))
        # What others can do no better, though the next session may, is the answer for all.
        is_for_all = result.best is not None or not (search_end is SearchEnd.TIME or judgement.ran_out)
        if not is_for_all and (told := self._leave_to_others(result)) is not None:
            return told
        self._folder.finish(result)
        return self._ledger.publish(result) if is_for_all else result
