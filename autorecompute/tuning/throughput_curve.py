"""Throughput over batches, and the answer that it gives."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from autorecompute.figures import LEAST_RATIO, MARGIN, Comparison, CurvePoint, Figures, Recomputed, Verdict, judge
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Best, Result
from autorecompute.studies.storage import read_trials
from autorecompute.tuning.rivals import compare_in_pairs, fresh_runs
from autorecompute.tuning.usual import Usual

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autorecompute.result import SearchEnd
    from autorecompute.search import BatchChooser
    from autorecompute.search.micro_batches import MicroBatchChooser
    from autorecompute.studies import StudyFolder
    from autorecompute.tuning.context import TuningContext


NO_FIT = "no config fits"
NOT_IN_TIME = "no config was confirmed in time"
BEYOND = "out of memory at its start"
TOO_FEW_TRIALS = "no config that fits in so few trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedBatch:
    """A batch that has a study of its own.

    Attributes:
        measured: Number of its trials, without those that it took over from a study of the same problem.
    """

    batch: int
    result: Result
    least_peak_bytes: int | None
    measured: int

    @classmethod
    def of(cls, batch: int, result: Result, folder: StudyFolder) -> Self:
        """Return the figures of a tuned study at its batch."""
        trials = read_trials(folder.database, folder.name_in_database)
        peaks = [peak for trial in trials if (peak := trial.measurement.peak_bytes) is not None]
        # What was taken over has no folder here.
        measured = len(folder.kept_trials())
        return cls(batch=batch, result=result, least_peak_bytes=min(peaks, default=None), measured=measured)

    @property
    def point(self) -> CurvePoint:
        """Return its place on the curve."""
        best, baseline = self.result.best, self.result.baseline
        # Where the steps without recompute hold the limit and are not the answer, their whole process needs more.
        outcome = Outcome.OVER_LIMIT if baseline.outcome is Outcome.OK else baseline.outcome
        figures, description = Figures(), NOT_IN_TIME
        if best is not None:
            description = best.description
            figures = Figures(
                outcome=Outcome.OK,
                samples_per_second=best.samples_per_second,
                relative_throughput=best.relative_throughput,
                peak_bytes=best.peak_bytes,
                batch=self.batch,
            )
            if best.config.is_none:
                return CurvePoint(batch=self.batch, without=figures)
        elif not self.result.search_end.is_early:
            description = TOO_FEW_TRIALS if self.is_open else NO_FIT
        recomputed = Recomputed(
            study=self.result.study,
            description=description,
            figures=figures,
            least_peak_bytes=self.least_peak_bytes,
            config=best.config if best is not None else None,
        )
        without = replace(baseline, outcome=outcome, batch=self.batch)
        return CurvePoint(batch=self.batch, without=without, recomputed=recomputed)

    @property
    def is_open(self) -> bool:
        """Tell whether time or trials were over before it was known that a config fits, or that none does."""
        return self.result.verdict is None


def point_beyond(batch: int, study: str) -> CurvePoint:
    """Return a batch that no config can make fit: the script has no memory for it before there is any."""
    recomputed = Recomputed(study=study, description=BEYOND, figures=Figures())
    return CurvePoint(batch=batch, without=Figures(outcome=Outcome.OOM, batch=batch), recomputed=recomputed)


def draw(without: Iterable[Figures], tuned: Sequence[TunedBatch], beyond: CurvePoint | None = None) -> list[CurvePoint]:
    """Return every batch that was measured, the smallest first.

    The first ones are fresh processes without recompute. Nobody can have the batch beyond, if there is one.
    """
    baselines = [entry.result.rival for entry in tuned if entry.result.rival is not None]
    points = {
        figures.batch: CurvePoint(batch=figures.batch, without=figures)
        for figures in (*baselines, *without)
        if figures.batch
    }
    for entry in tuned:
        point, known = entry.point, points.get(entry.batch)
        # What a whole process without recompute came to says more than a trial beyond the limit.
        keeps_known = known is not None and not point.fits_without
        points[entry.batch] = replace(point, without=known.without) if known is not None and keeps_known else point
    if beyond is not None:
        points[beyond.batch] = beyond
    return [points[batch] for batch in sorted(points)]


class BatchAnswer:
    """Compares the batches of a curve.

    The folder of the context is that of the study that stands for all batches.
    """

    def __init__(
        self,
        context: TuningContext,
        chooser: BatchChooser | MicroBatchChooser,
        curve: Sequence[CurvePoint],
        tuned: Sequence[TunedBatch],
        usual: Figures | None = None,
    ) -> None:
        self._context, self._chooser, self._curve, self._tuned = context, chooser, curve, tuned
        self._usual = usual  # gradient checkpointing in a process of its own
        fitting = [point for point in curve if point.fits_without]
        able = [point for point in fitting if chooser.may_answer(point.batch)]
        self._recomputed = _fastest_with([point for point in curve if point.fits_with])
        # The fastest without recompute, of those that may be the answer, and of all that were measured.
        self._plain = max(able, key=_speed_without, default=None)
        self._rival = max(fitting, key=_speed_without, default=None)
        # It has to be a gain, unless the rival batch was not asked for.
        self._least_ratio = 1 + MARGIN if self._rival is self._plain else LEAST_RATIO

    def compare(self, has_time: Callable[[], bool] = lambda: False) -> Comparison | None:
        """Return the fastest batch with recompute beside the fastest without; ``None`` where one of them is missing.

        Without time for a further pair of processes there is none.
        """
        if self._recomputed is None or self._rival is None:
            return None
        study = self._study_at(self._recomputed.batch)
        is_same = study.rival is not None and study.rival.batch == self._rival.batch
        # The study of the batch may have compared the two already, in neighbouring processes.
        if self._least_ratio == LEAST_RATIO and is_same and study.comparison is not None and study.comparison.pairs:
            return study.comparison
        assert study.best is not None, "it was the fastest"
        # They run under what would be emitted.
        environment = self._context.emit(study.best.config)
        return compare_in_pairs(
            fresh_runs(self._context, environment, self._recomputed.batch),
            fresh_runs(self._context, {}, self._rival.batch),
            _speed_with(self._recomputed) / _speed_without(self._rival),
            least_ratio=self._least_ratio,
            are_neighbours=False,
            has_time=has_time,
        )

    def result(self, comparison: Comparison | None, search_end: SearchEnd, own_seconds: float) -> Result:
        """Return the answer.

        ``own_seconds`` were spent outside of the studies of the batches.
        """
        point, tuned = self._point(comparison), self._tuned
        if point is not None and point is self._recomputed:
            base = self._study_at(point.batch)
        else:
            base = self._result_without(point or (self._curve[0] if self._curve else None))
        too_large = min((entry.batch for entry in tuned if entry.result.verdict is Verdict.NO_FIT), default=math.inf)
        is_open = bool(self._chooser.untuned(self._curve))
        # More time or trials may find a config for a batch that has none, below any that no config holds.
        is_open = is_open or any(entry.is_open and entry.batch < too_large for entry in tuned)
        compared = base.compared and not search_end.is_early and not is_open
        usual = self._compare_with_usual(base)
        result = replace(
            base,
            study=self._context.folder.name,
            problem=self._context.problem.digest,
            verdict=self._judge(base, comparison, compared=compared),
            rival=self._rival.without if self._rival is not None else None,
            comparison=comparison,
            checkpointing=usual.figures if usual is not None else None,
            beside_checkpointing=usual.comparison if usual is not None else None,
            compared=compared,
            curve=tuple(self._curve),
            warnings=tuple(dict.fromkeys(text for entry in tuned for text in entry.result.warnings)),
            unconfirmed=tuple(dict.fromkeys(text for entry in tuned for text in entry.result.unconfirmed)),
            trials=sum(entry.result.trials for entry in tuned),
            wall_seconds=own_seconds + sum(entry.result.wall_seconds for entry in tuned),
            transferred_from=None,
        )
        return result.ending(search_end)

    def _compare_with_usual(self, base: Result) -> Usual | None:
        """Return the answer beside gradient checkpointing, at the batch where that is fastest."""
        best, found = base.best, [self._usual, *(entry.result.checkpointing for entry in self._tuned)]
        fitting = [one for one in found if one is not None and one.outcome is Outcome.OK]
        usual = max(fitting, key=lambda one: one.samples_per_second or 0.0, default=None)
        if best is None or usual is None or usual is base.checkpointing:
            return None if usual is None else Usual(usual, base.beside_checkpointing)
        ratio = best.samples_per_second / usual.samples_per_second if usual.samples_per_second else None
        beside = next((entry.result for entry in self._tuned if entry.result.checkpointing is usual), None)
        if beside is not None and beside.best is not None and beside.beside_checkpointing is not None:
            # Within its own study it was timed in the same minutes as that one's answer.
            ratio = best.samples_per_second / beside.best.samples_per_second * beside.beside_checkpointing.ratio
        return Usual(usual, None if ratio is None else Comparison(ratio=ratio, pairs=0, is_clear=False))

    def _study_at(self, batch: int) -> Result:
        return next(entry.result for entry in self._tuned if entry.batch == batch)

    def _point(self, comparison: Comparison | None) -> CurvePoint | None:
        """Return the batch to train with, by the best estimate; ``None`` where no batch fits."""
        if self._recomputed is None or self._plain is None:
            return self._recomputed or self._plain
        if comparison is None or comparison.ratio >= self._least_ratio:
            return self._recomputed
        # What is only compared with may be faster than all that was asked for.
        is_faster = _speed_with(self._recomputed) > _speed_without(self._plain)
        return self._recomputed if is_faster and self._plain is not self._rival else self._plain

    def _judge(self, base: Result, comparison: Comparison | None, *, compared: bool) -> Verdict | None:
        """Return the verdict on recompute at all batches together, by the answer at the batch to train with."""
        if base.best is None:
            return Verdict.NO_FIT if compared else None
        if not compared:
            return Verdict.UNDECIDED
        if self._rival is None:
            return base.verdict  # the study of a batch has looked for a smaller one that fits without
        if self._recomputed is not None:
            return judge(comparison, self._least_ratio)
        is_tuned = any(point.recomputed is not None for point in self._curve)
        return Verdict.DOES_NOT_PAY if is_tuned else Verdict.NOT_NEEDED

    def _result_without(self, point: CurvePoint | None) -> Result:
        job, problem, detection = self._context.job, self._context.problem, self._context.detection
        figures, best = Figures() if point is None else point.without, None
        # The smallest batch that was measured may be one of an earlier list.
        if point is not None and point.fits_without and self._chooser.may_answer(point.batch):
            assert figures.samples_per_second is not None, "what fits was timed"
            assert figures.peak_bytes is not None, "what fits has a peak"
            best = Best(
                config=Config(),
                description=detection.space.describe(Config()),
                batch=point.batch,
                accumulation=job.passes(point.batch),
                samples_per_second=figures.samples_per_second,
                relative_throughput=None,
                peak_bytes=figures.peak_bytes,
                limit_bytes=problem.limit_bytes,
                confirmed=True,
            )
        return Result(
            study=self._context.folder.name,
            problem=problem.digest,
            verdict=None,
            best=best,
            baseline=figures,
            trials=0,
            device=detection.device,
            versions=detection.versions,
            command=job.plain_command(point.batch) if point is not None else job.command_of_any_batch(),
            script_at=job.script_at,
            command_gives_batch=job.takes_batch,
        )


def _fastest_with(points: Sequence[CurvePoint]) -> CurvePoint | None:
    fastest = None
    for point in points:
        # A larger batch takes more recompute: it has to be worth it.
        if fastest is None or _speed_with(point) > _speed_with(fastest) * (1 + MARGIN):
            fastest = point
    return fastest


def _speed_with(point: CurvePoint) -> float:
    assert point.recomputed is not None, "it was tuned"
    return point.recomputed.figures.samples_per_second or 0.0


def _speed_without(point: CurvePoint) -> float:
    return point.without.samples_per_second or 0.0


def says_more(known: Result, so_far: Result) -> bool:
    """Tell whether an earlier run knows more batches, kept knobs, or compared the same two in pairs of processes."""
    if known.best is not None and known.best.knobs:
        return len(known.curve) >= len(so_far.curve)
    pairs, earlier_pairs = (item.comparison.pairs if item.comparison is not None else 0 for item in (so_far, known))
    if len(known.curve) == len(so_far.curve) and known.best == so_far.best:
        return known.compared or earlier_pairs > pairs
    return len(known.curve) > len(so_far.curve)
