"""One tuning, from detection to the answer, and what it starts from: an answer to the same problem, or a prior."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.errors import NothingFitsError, TooLittleTimeError
from autorecompute.measurement import Outcome
from autorecompute.result import SearchEnd
from autorecompute.search import Prior
from autorecompute.search.searcher import slowness
from autorecompute.studies.transfer import find_nearest
from autorecompute.tuning import explanations
from autorecompute.tuning.attempt import Attempt
from autorecompute.tuning.budget import Task
from autorecompute.tuning.context import device_lock
from autorecompute.tuning.knob_search import try_knobs
from autorecompute.tuning.ledger import Ledger
from autorecompute.tuning.lengths import tune_lengths
from autorecompute.tuning.race import race_winner
from autorecompute.tuning.trial_runner import TrialRunner
from autorecompute.units import format_bytes
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from autorecompute.plans import Config
    from autorecompute.result import Result, Transfer
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.records import StudyRecords
    from autorecompute.studies.storage import TrialStore
    from autorecompute.tuning.context import TuningContext


class Tuner:
    """Tunes one job and leaves a finished study.

    A tuning opens its study, which may have the answer. If not, it searches and decides, as often as it takes, while
    it holds the device. At last it tries other settings on the winner.
    """

    def __init__(self, context: TuningContext) -> None:
        self._context = context
        self.so_far: Result | None = None
        """The answer that an interruption leaves, or that an earlier session left."""
        self._transfer: Transfer | None = None
        self._prior: Prior | None = None
        self._ledger = Ledger(context)

    def run(self) -> Result:
        """Return the study's answer; measured now, or read where the identical problem was finished before.

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
            with self._context.budget.enforced():
                return self._tune()
        except (OutOfTime, TooLittleTimeError) as late:
            if self.so_far is not None:
                return self.so_far
            why = str(late) if isinstance(late, TooLittleTimeError) else self._explain_lateness()
            raise TooLittleTimeError(
                f"{why} {explanations.explain_unconfirmed(self._context.folder)}".rstrip()
            ) from None

    def _tune(self) -> Result:
        try:
            result = self._open_study()
            self._set_answer(result)
            if result is not None and self._is_final(result):
                is_solved = result.verdict is not None
                known = "this problem was solved before: its answer stands"
                self._context.note(known if is_solved else "these trials were made before, and no more are allowed")
            else:
                with device_lock(self._context):
                    result = self._search_and_decide()
                self._set_answer(result)
            result = self._for_every_length(result)
            self._set_answer(result)
            result = try_knobs(self._context, result, self._set_answer)
            if result.best is None:
                raise NothingFitsError(self._explain_none(result))
            return result
        finally:
            self._ledger.close()

    def _for_every_length(self, result: Result) -> Result:
        if result.best is None or self._context.job.longest is None:
            return result
        with device_lock(self._context):
            return tune_lengths(self._context, self._ledger.trials, result)

    def _open_study(self) -> Result | None:
        """Detect the problem, and take over what this study or a similar one knows of it; the answer if known."""
        context = self._context
        context.detect()
        is_new = self._ledger.begin()
        result = self._ledger.known_answer()
        if not context.settings.is_fresh and (result is None or not self._is_final(result)):
            if nearest := find_nearest(context.head, context.folder, context.note):
                store = self._ledger.store
                self._transfer, self._prior = _start_from(*nearest, context.folder, store, is_new=is_new)
                context.note(self._transfer.sentence)
            result = self._ledger.known_answer()
        context.progress.detected(
            context.detection,
            context.problem.limit_bytes,
            known_trials=self._ledger.trials,
            budget=context.settings.max_trials,
            deadline_seconds=context.budget.deadline_seconds,
        )
        return result

    def _is_final(self, result: Result) -> bool:
        # What was found while a training went on has not been confirmed in a process of its own yet.
        is_confirmed = result.best is None or result.best.confirmed
        return is_confirmed and not result.can_go_on(self._context.settings.max_trials)

    def _search_and_decide(self) -> Result:
        """Return the answer by new trials; further attempts follow where another worker's answer can be improved."""
        runner = TrialRunner(self._context, self._ledger)
        for trial in self._ledger.start():
            runner.keep(trial)
            if trial.measurement.outcome is Outcome.LOST:
                self._context.note(f"the last run was interrupted while it measured {trial.description}")
        resting_bytes, limit_bytes = self._context.detection.resting_bytes, self._context.problem.limit_bytes
        if resting_bytes > limit_bytes:
            raise NothingFitsError(
                f"The script holds {format_bytes(resting_bytes)} before its first step, above the limit of "
                f"{format_bytes(limit_bytes)}: no recompute can help. Raise --memory-limit, or train a "
                "smaller model."
            )
        result = self._attempt(runner)
        while self._can_improve(result):
            self._ledger.resume()
            result = self._attempt(runner)
        return result

    def _attempt(self, runner: TrialRunner) -> Result:
        def set_answer(result: Result | None) -> None:
            self.so_far = result

        attempt = Attempt(
            self._context, self._ledger, runner, prior=self._prior, transfer=self._transfer, set_answer=set_answer
        )
        return attempt.run()

    def _can_improve(self, result: Result) -> bool:
        """Tell whether another worker answered for want of time that this one has."""
        if self._ledger.is_confirming or result.best is None or result.search_end is not SearchEnd.TIME:
            return False
        self._set_answer(result)
        return self._context.allows_trial(self._ledger.trials)

    def _set_answer(self, result: Result | None) -> None:
        # What a training found is no answer before a process of its own has confirmed it.
        is_answer = result is not None and result.best is not None and result.best.confirmed
        self.so_far = result if is_answer else None

    def _explain_none(self, result: Result) -> str:
        """Return why there is no config to train with."""
        detection = replace(self._context.detection, resting_bytes=self._context.rest_bytes)
        limit_bytes, memory = self._context.problem.limit_bytes, self._context.memory
        trials, rejections = self._ledger.trials, self._context.folder.rejections()
        seen = (trials, detection, limit_bytes, result.unconfirmed, rejections)
        if result.verdict is None and result.search_end is SearchEnd.TRIALS:
            return explanations.explain_too_few_trials(len(trials), limit_bytes, result.expected, rejections)
        if not result.search_end.is_early:
            return explanations.explain_no_fit(*seen, memory=memory)
        if not trials:
            return self._explain_lateness()
        winner = race_winner(self._context.folder, trials, {known.config for known in rejections})
        return explanations.explain_early_end(*seen, memory=memory, winner=winner)

    def _explain_lateness(self) -> str:
        context, start_seconds = self._context, self._context.budget.expect(Task.START)
        return explanations.explain_too_little_time(context.folder, start_seconds, context.settings.timeout_seconds)


INHERITED = 3
"""So many of a stored study's fastest are taken for its finalists where it has raced none."""


IN_A_FOLDER = "shared, not in a folder of its own"
"""Difference of a study that several workers share from a stored one of the same problem."""

BEGUN_BEFORE = "this study had begun already"
"""Difference of a study that is continued: it takes over nothing."""


def _start_from(
    transfer: Transfer, records: StudyRecords, folder: StudyFolder, store: TrialStore | None, *, is_new: bool
) -> tuple[Transfer, Prior | None]:
    """Return a study's transfer and prior from the nearest study; a new one takes over all trials of the same problem.

    Without a store others add trials, too, so that it takes over nothing.
    """
    if not transfer.differences:
        if store is None:
            transfer = replace(transfer, differences=(IN_A_FOLDER,))
        elif is_new:
            _adopt(transfer, records, folder, store)
        else:
            known, own = list(records.trials), folder.kept_trials()
            # The same trials may have been taken over the other way round: what was measured here has a folder.
            if store.trials[: len(known)] != known or known[0].number in own:
                transfer = replace(transfer, differences=(BEGUN_BEFORE,))
    return transfer, _prior_of(transfer.study, records) if transfer.differences else None


def _prior_of(study: str, records: StudyRecords) -> Prior:
    problem, sizes = records.head.problem, records.head.sizes
    best = records.result.best if records.result is not None else None
    # What a knob made of the winner is not for those who do not turn it.
    is_tried = best is not None and any(trial.config == best.config for trial in records.trials)
    return Prior(
        source=study,
        batch=problem.batch,
        limit_bytes=problem.limit_bytes,
        resting_bytes=sizes.resting_bytes,
        dims=sizes.dims,
        trials=records.trials,
        answer=best.config if best is not None and is_tried else None,
        finalists=_finalists_of(records),
    )


def _adopt(transfer: Transfer, records: StudyRecords, folder: StudyFolder, store: TrialStore) -> None:
    """Take over all that a study of the same problem knows into one that has just begun."""
    for trial in records.trials:
        store.add(trial)
    folder.keep_rejections(records.rejections)
    folder.keep_confirmed(records.confirmed)
    if records.result is not None:
        folder.finish(replace(records.result, study=folder.name, transferred_from=transfer))


def _finalists_of(records: StudyRecords) -> tuple[Config, ...]:
    result = records.result
    raced = result.raced if result is not None else {}
    fitting = [trial for trial in records.trials if trial.fits]
    if raced:
        fitting = [trial for trial in fitting if trial.config.hash in raced]
        fitting.sort(key=lambda trial: raced[trial.config.hash], reverse=True)
    else:
        fitting.sort(key=slowness)
    return tuple(trial.config for trial in fitting[:INHERITED])
