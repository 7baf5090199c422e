"""Opens a study and tunes one batch or several."""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import AUTO
from autorecompute.errors import (
    NothingFitsError,
    ScriptError,
    TooLargeError,
    TooLittleTimeError,
    UsageError,
    WrongBatchError,
)
from autorecompute.figures import Figures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.result import Result, SearchEnd
from autorecompute.search import BatchChooser
from autorecompute.search.micro_batches import MicroBatchChooser, divisors
from autorecompute.studies import StudyFolder, records
from autorecompute.studies.analysis import share_analysis
from autorecompute.studies.folder import bind, make_folder, require_own, require_plain, using
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import BatchRecord, study_of_batch
from autorecompute.studies.shared_study import SharedStudy
from autorecompute.studies.storage import StorageUrl
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.tuning import explanations
from autorecompute.tuning.budget import Task
from autorecompute.tuning.context import SURELY_BEYOND, Progress, TuningContext, TuningSettings, device_lock
from autorecompute.tuning.knob_search import try_knobs
from autorecompute.tuning.rivals import (
    FORECAST_SHARE,
    PAIR,
    figures_of,
    has_enough_pairs,
    lost,
    measure_without,
    without_lost,
)
from autorecompute.tuning.searcher_factory import PROFILED_BATCH
from autorecompute.tuning.throughput_curve import BatchAnswer, TunedBatch, draw, point_beyond, says_more
from autorecompute.tuning.tuner import Tuner
from autorecompute.tuning.usual import usual_config
from autorecompute.units import format_count
from autorecompute.waiting import OutOfTime, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autorecompute.figures import CurvePoint
    from autorecompute.memory import Forecast, MemoryModel
    from autorecompute.studies import Problem


LEAST_TRIALS = 6
"""A batch gets so many trials at least, as long as there are any: fewer say nothing about the plans."""


USUAL_ATTEMPTS = 2
LOOKING = Effort(warmup=0, steps=1, looks_at_loss=True)
"""So many micro-batches are tried with gradient checkpointing, the largest first."""


class BatchTuner:
    """Tunes one job at several batches, and leaves a finished study that stands for all of them.

    Args:
        context: The tuning; its bench gives the detection and runs fresh processes at any batch.
        batches: The batches to compare; empty to look for the best.
        open_bench: Makes a bench for one batch and its study.
    """

    def __init__(
        self, context: TuningContext, batches: Sequence[int], open_bench: Callable[[int, StudyFolder], Bench]
    ) -> None:
        self._context, self._batches, self._open_bench = context, tuple(batches), open_bench
        self._folder, self._settings, self._budget = context.folder, context.settings, context.budget
        self.so_far: Result | None = None
        """The answer that an interruption leaves, or that an earlier run left which was asked for the same."""
        self._chooser: BatchChooser | MicroBatchChooser | None = None
        self._tuned: list[TunedBatch] = []
        self._beyond: CurvePoint | None = None
        self._unsplittable: str | None = None
        self._record = BatchRecord(asked=self._batches)

    def run(self) -> Result:
        """Return the answer; measured now, or read where the same was finished before.

        Raises:
            KeyboardInterrupt: the user stopped it; the best of what was finished until then is in ``so_far`` and in the
                study.
            NothingFitsError: no batch has a config that holds the limit, or none was confirmed in time.
            ScriptError: the script fails by itself.
            SetupError: the installation lacks something, or a study cannot be written.
            UsageError: a study holds another problem, or the batch cannot reach the model.
        """
        try:
            with self._budget.enforced():
                return self._answer()
        except (OutOfTime, TooLittleTimeError) as late:
            self._finish_so_far(SearchEnd.TIME)
            if self.so_far is not None:
                return self.so_far
            if isinstance(late, TooLittleTimeError):
                raise
            raise TooLittleTimeError(
                explanations.explain_late_batches(self._folder, self._batches, self._settings.timeout_seconds)
            ) from None
        except KeyboardInterrupt:
            self._finish_so_far(SearchEnd.INTERRUPTED)
            raise

    def _answer(self) -> Result:
        context = self._context
        context.detect(None if self._batches else lambda batch: self._open_bench(batch, self._folder))
        if context.job.global_batch is not None:
            self._split(context.job.global_batch)
        context.problem = replace(context.problem, batch=SEVERAL_BATCHES)
        command = tuple(context.job.command_of_any_batch())
        bind(self._folder, replace(context.head, command=command), context.note)
        record = without_lost(records.read_batches(self._folder, self._batches))
        self._record = replace(record, unsplittable=self._unsplittable)
        result = self._known_result()
        self._set_answer(result)
        if result is None or not self._record.is_answered_by(result, self._settings.max_trials):
            result = self._measure()
            self._chooser = None
            self._set_answer(result)
        else:
            self._context.note("these batches were compared before: the answer stands")
        if result.best is None:
            raise NothingFitsError(explanations.explain_no_batch(result, context.problem.limit_bytes))
        if not self._settings.turns_knobs:
            return result
        # They are turned on the answer alone: a batch that does not win has no use for them.
        context.bench.close()
        with self._open_bench(result.best.batch, self._folder) as bench:
            context.bench, context.settings = bench, replace(context.settings, batch=result.best.batch)
            return try_knobs(context, result, self._set_answer)

    def _split(self, global_batch: int) -> None:
        """Take the micro-batches that make the effective batch, on all ranks together.

        Raises:
            UsageError: the ranks cannot share it evenly.
        """
        context, world = self._context, len(self._context.bench.detect_ranks())
        if global_batch % world:
            raise UsageError(
                f"{world} ranks cannot share a global batch of {global_batch} evenly. Take one that {world} divides."
            )
        self._batches = divisors(global_batch // world)
        known = self._folder.read(records.BATCHES_FILE, BatchRecord)
        self._unsplittable = known.unsplittable if known is not None else None
        if self._unsplittable is None and len(self._batches) > 1:
            with device_lock(context):
                looked_at = context.bench.measure(Config(), LOOKING)
            self._unsplittable = explanations.explain_unsplittable(context.detection, [looked_at])
        if self._unsplittable:
            context.note(f"{self._unsplittable}: the batch is tuned as it is, in one pass")
            self._batches = self._batches[-1:]
        if world > 1:
            # Only now is it known how many passes each of them makes.
            context.job = replace(context.job, world=world)
            context.bench.close()
            context.bench = self._open_bench(self._batches[0], self._folder)

    def _make_chooser(self) -> BatchChooser | MicroBatchChooser:
        context, problem = self._context, self._context.problem
        if context.job.global_batch is None:
            return BatchChooser(
                problem.limit_bytes, context.rest_bytes, listed=self._batches, start=context.detection.batch
            )
        room_bytes, memory = round(FORECAST_SHARE * problem.limit_bytes), context.memory
        start, overheads = context.detection.batch, None
        if memory is not None:
            start = memory.largest_batch(Config(), context.dims, room_bytes)
            overheads = {
                batch: forecasts[0].recompute_share
                for batch in self._batches
                if (forecasts := _fitting(memory, {**context.dims, BATCH: batch}, problem.limit_bytes))
            }
        return MicroBatchChooser(
            problem.limit_bytes, context.rest_bytes, listed=self._batches, start=start, overheads=overheads
        )

    def _known_result(self) -> Result | None:
        """Return the answer of an earlier run that was asked for the same batches."""
        return self._folder.result() if self._record.asked == self._batches else None

    def _set_answer(self, result: Result | None) -> None:
        self.so_far = result if result is not None and result.best is not None else None

    def _measure(self) -> Result:
        detection, problem = self._context.detection, self._context.problem
        self._chooser = chooser = self._make_chooser()
        deadline_seconds, budget = self._budget.deadline_seconds, self._settings.max_trials
        self._context.progress.detected(
            detection, problem.limit_bytes, known_trials=(), budget=budget, deadline_seconds=deadline_seconds
        )
        # Whatever measures next wants the memory that the detected model holds.
        self._context.bench.close()
        with self._device_lock():
            while self._budget.allows(Task.CONFIRMATION) and (batch := chooser.without(self._curve)) is not None:
                # The script has to bear what was asked for, and a batch where none that is smaller was seen to train.
                is_due = batch in self._batches or not any(point.fits_without for point in self._curve)
                figures = measure_without(self._context, batch, problem.limit_bytes, is_due=is_due)
                self._keep(replace(self._record, without=(*self._record.without, figures)))
        self._finish_so_far(SearchEnd.INTERRUPTED)
        search_end = self._tune_all(chooser, problem)
        self._measure_usual()
        answer = BatchAnswer(self._context, chooser, self._curve, self._tuned, self._record.usual)
        comparison = answer.compare()
        if comparison is not None and not comparison.is_clear and self._has_time_for_a_pair():
            with self._device_lock():
                comparison = answer.compare(self._has_time_for_a_pair)
        if comparison is not None and not has_enough_pairs(comparison, has_time=self._has_time_for_a_pair()):
            search_end = SearchEnd.TIME
        result = answer.result(comparison, search_end, self._record.seconds)
        known = self._known_result()
        if search_end.is_early and known is not None and known.best is not None and says_more(known, result):
            # There was no time to come as far as an earlier run did.
            result = known.ending(search_end)
        self._folder.finish(result)
        if search_end is SearchEnd.TRIALS and (untuned := chooser.untuned(self._curve)):
            self._context.note(explanations.explain_untuned(untuned, self._settings.max_trials))
        for batch in lost(self._record):
            self._context.note(f"batch {batch}: its processes were lost. The same command measures it again")
        self._keep(replace(self._record, asked=self._batches, max_trials=self._settings.max_trials, is_complete=True))
        return result

    def _measure_usual(self) -> None:
        """Run gradient checkpointing in a process of its own, at the largest micro-batch that it should fit."""
        context, memory, usual = self._context, self._context.memory, usual_config(self._context)
        if context.job.global_batch is None or memory is None or usual is None or self._record.usual is not None:
            return
        largest = memory.largest_batch(usual, context.dims, round(FORECAST_SHARE * context.problem.limit_bytes))
        # A whole process may need more than its tensors: then the next smaller one.
        for batch in [one for one in self._batches[::-1] if one <= largest][:USUAL_ATTEMPTS]:
            if any(entry.batch == batch for entry in self._tuned) or not self._budget.allows(Task.CONFIRMATION):
                return
            context.note(f"batch {batch}: measuring gradient checkpointing of all blocks")
            with self._device_lock():
                measured = context.watch(context.emit(usual), batch).under(context.problem.limit_bytes)
            if measured.outcome is Outcome.OK:
                self._keep(replace(self._record, usual=replace(figures_of(measured), batch=batch)))
                return

    @property
    def _curve(self) -> list[CurvePoint]:
        return draw(self._record.without, self._tuned, self._beyond)

    def _keep(self, record: BatchRecord) -> None:
        self._record = record
        # What was lost counts for this run alone.
        self._folder.write(records.BATCHES_FILE, without_lost(record))

    @contextmanager
    def _device_lock(self) -> Iterator[None]:
        with device_lock(self._context):
            began = time.monotonic()
            yield
        self._keep(replace(self._record, seconds=self._record.seconds + time.monotonic() - began))

    def _tune_all(self, chooser: BatchChooser | MicroBatchChooser, problem: Problem) -> SearchEnd:
        if chooser.without(self._curve) is not None:
            return SearchEnd.TIME
        while (batch := chooser.recomputed(self._curve)) is not None:
            trials_left = self._settings.max_trials - sum(entry.measured for entry in self._tuned)
            if not self._budget.allows(Task.START, Task.CONFIRMATION):
                return SearchEnd.TIME
            if trials_left < 1:
                return SearchEnd.TRIALS
            shares = chooser.expected(self._curve)
            trials = min(trials_left, max(trials_left // shares, LEAST_TRIALS))
            try:
                result = self._tune(batch, trials, problem, timeout_seconds=self._time_left(shares))
            except (ScriptError, WrongBatchError) as error:
                # Of a list all but the first may be beyond: the script has no memory for it before there is any.
                is_beyond = isinstance(error, TooLargeError) and self._batches and batch != self._batches[0]
                if is_beyond:
                    self._beyond = point_beyond(batch, study_of_batch(self._folder, batch).name)
                elif self._batches:
                    raise
                self._context.note(f"batch {batch} cannot be tuned, so no larger one is: {error}")
                break
            if result is None:
                return SearchEnd.TIME
            self._add(batch, result)
            self._finish_so_far(SearchEnd.INTERRUPTED)
        ends = {entry.result.search_end for entry in self._tuned}
        if any(end.is_early for end in ends):
            return SearchEnd.TIME
        return SearchEnd.TRIALS if SearchEnd.TRIALS in ends else SearchEnd.NOTHING_LEFT

    def _finish_so_far(self, search_end: SearchEnd) -> None:
        """Keep the best of what was finished, here or in an earlier run, for an interruption of the rest."""
        if self._chooser is None:
            return
        self._keep(replace(self._record, is_complete=False))
        known = self._known_result()
        answer = BatchAnswer(self._context, self._chooser, self._curve, self._tuned, self._record.usual)
        so_far = answer.result(answer.compare(), SearchEnd.INTERRUPTED, self._record.seconds)
        if so_far.best is not None and (known is None or not says_more(known, so_far)):
            self.so_far = so_far.ending(search_end)
            self._folder.finish(self.so_far)
            self._keep(replace(self._record, asked=self._batches))

    def _tune(self, batch: int, trials: int, problem: Problem, *, timeout_seconds: float | None) -> Result | None:
        """Return the answer of the batch's own study; ``None`` where the time was over before its first trial."""
        folder, problem = study_of_batch(self._folder, batch), replace(problem, batch=batch)
        require_own(folder)
        known = folder.result() if folder.exists() and not problem.differences(folder.head().problem) else None
        if known is not None and not known.can_go_on(trials):
            return known
        self._context.note(f"batch {batch}: tuning in study {folder.name}, up to {format_count(trials, 'trial')}")
        folder.prepare()
        for entry in self._tuned:
            share_analysis(study_of_batch(self._folder, entry.batch), folder, PROFILED_BATCH)
        fitting = [point for point in self._curve if point.fits_without]
        rival = fitting[-1].without if fitting else None
        if self._context.job.global_batch is not None:
            rival = rival or Figures()  # nothing that makes the effective batch fits
        elif self._batches and not self._tuned:
            rival = None  # the first tuning of a list has yet to find it
        settings = replace(
            self._settings,
            batch=batch,
            limit_bytes=problem.limit_bytes,
            max_trials=trials,
            timeout_seconds=timeout_seconds,
            began_seconds=clock(),
            rival_batch=rival,
            turns_knobs=False,
        )
        with using(folder), self._open_bench(batch, folder) as bench:
            tuner = Tuner(replace(self._context, bench=bench, folder=folder, settings=settings))
            try:
                return tuner.run()
            except TooLittleTimeError:
                return None
            except NothingFitsError as error:
                self._context.note(f"batch {batch}: {error}")
                result = folder.result()
                if result is None:
                    raise
                return result
            except KeyboardInterrupt:
                if tuner.so_far is not None:
                    self._add(batch, tuner.so_far)
                raise

    def _add(self, batch: int, result: Result) -> None:
        self._tuned.append(TunedBatch.of(batch, result, study_of_batch(self._folder, batch)))

    def _has_time_for_a_pair(self) -> bool:
        return self._budget.allows(*PAIR)

    def _time_left(self, shares: int) -> float | None:
        if self._settings.timeout_seconds is None:
            return None
        left_seconds = self._budget.left_seconds
        # What the batches leave is for the comparison in the end.
        return (left_seconds - min(self._budget.expect(*PAIR), left_seconds / 2)) / shares


def _fitting(memory: MemoryModel, dims: Mapping[str, int], limit_bytes: int) -> list[Forecast]:
    """Return the forecasts that hold the limit or nearly do, those that recompute least first."""
    return [one for one in memory.forecasts(dims) if one.peak_bytes <= SURELY_BEYOND * limit_bytes]


TAG_LENGTH = 6
REPLACE_CHECKPOINTING = "--replace-checkpointing"
LONGEST_WORDS = 80
"""Bytes of the script's name in that of its study."""

_UNFIT_FOR_NAMES = re.compile(r"[^\w.-]")


@dataclass(slots=True, kw_only=True, eq=False)
class TuningSession:
    """The tuning of one command.

    Attributes:
        batches: The batches to compare, empty to look for the best; ``None`` for one batch alone.
        storage: Storage in which the study is shared with other workers; ``None`` where it is not.
        debugs: True if the first worker keeps the terminal and has all the time it wants.
        so_far: The answer that an interruption leaves.
    """

    job: Job
    folder: StudyFolder
    settings: TuningSettings
    batches: tuple[int, ...] | None = None
    storage: StorageUrl | None = None
    debugs: bool = False
    so_far: Result | None = None

    def require_own(self) -> None:
        """Check that the study, where there is one, can be read and was not imported.

        Raises:
            SetupError: it cannot be read.
            UsageError: it was imported.
        """
        if self.folder.exists():
            self.folder.head()
        require_own(self.folder)

    def run(self, progress: Progress) -> Result:
        """Return the study's answer; see :meth:`Tuner.run` and :meth:`BatchTuner.run` for what is raised."""
        if self.batches is not None:
            records.require_names_of_batches(self.folder, self.batches)
        with self._opened(progress.note) as shared:
            limit_bytes = self.settings.limit_bytes
            if limit_bytes is None and self.folder.exists():
                limit_bytes = self.folder.head().problem.limit_bytes

            context: TuningContext | None = None

            def open_bench(batch: int | None, study: StudyFolder) -> Bench:
                job = self.job if context is None else context.job
                logs = study.workers if shared is None else study.workers / shared.session
                debugs, path = self.debugs and study is self.folder, self.folder.path
                return Bench(job, batch, make_folder(logs), limit_bytes=limit_bytes, debugs=debugs, study=path)

            context = TuningContext(
                job=self.job,
                bench=open_bench(self.settings.batch, self.folder),
                folder=self.folder,
                settings=self.settings,
                progress=progress,
                shared=shared,
            )
            tuner = Tuner(context) if self.batches is None else BatchTuner(context, self.batches, open_bench)
            try:
                return tuner.run()
            finally:
                context.bench.close()
                self.so_far = tuner.so_far

    def explain_interruption(self) -> str:
        """Tell of the trials that are kept, and of the answer so far."""
        explain = (
            explanations.explain_interruption if self.batches is None else explanations.explain_interrupted_batches
        )
        return explain(self.folder, self.so_far)

    @contextmanager
    def _opened(self, note: Callable[[str], None]) -> Iterator[SharedStudy | None]:
        """Have the study ready, in its folder and where it is shared."""
        folder = self.folder
        if self.storage is None:
            folder.prepare()
            with using(folder):
                note(f"study {folder.path}")
                yield None
            return
        require_plain(folder)
        # Before there is anything in the folder, which other workers may have, too: a failure leaves nothing behind.
        shared = SharedStudy(self.storage, folder.name)
        shared.require(records.required_of(folder))
        folder.prepare()
        note(f"study {folder.path}")
        state = "new" if shared.head is None else f"{format_count(len(shared.trials), 'trial')} so far"
        note(f"shared in {shared.place}: {'answered' if shared.answer is not None else state}")
        yield shared


def default_name(job: Job, batch: int | str | None, limit_bytes: int | None, graph: str = "") -> str:
    """Return a study's name, the same for the same command: ``bert_mlm-train-b32-1f3a5c``.

    ``graph`` is the digest of what it trains, where a command may train one thing after another.
    """
    script = job.script.resolve()
    parts = [str(script), *job.arguments, job.batch_flag, job.launcher, batch, limit_bytes]
    parts += [job.backend] if job.backend != AUTO else []
    parts += [REPLACE_CHECKPOINTING] if job.replaces_checkpointing else []
    parts += ["--exact"] if job.is_exact else []
    parts += ["--longest", job.longest] if job.longest is not None else []
    parts += ["--global-batch", job.global_batch, job.accumulation_flag] if job.global_batch is not None else []
    parts += [graph] if graph else []
    tag = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:TAG_LENGTH]
    words = _UNFIT_FOR_NAMES.sub("_", f"{script.parent.name}-{script.name.removesuffix('.py')}").strip("_-.")
    words = words.encode()[:LONGEST_WORDS].decode(errors="ignore")
    size = f"-g{job.global_batch}" if job.global_batch is not None else f"-b{batch}" if batch else ""
    return f"{words or 'study'}{size}-{tag}"
