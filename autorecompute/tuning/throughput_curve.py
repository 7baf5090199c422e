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
from autorecompute.tuning.paired_comparison import compare_in_pairs
from autorecompute.tuning.rivals import fresh_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autorecompute.result import SearchEnd
    from autorecompute.search import BatchChooser
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
        batch: Samples a forward.
        result: The answer of that study.
        least_peak_bytes: The least peak that was seen in it.
        measured: How many trials it measured, without those that it took over from a study of the same problem.
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
        best = self.result.best
        if best is None:
            least = Recomputed(
                study=self.result.study,
                description=self._why_none,
                figures=Figures(),
                least_peak_bytes=self.least_peak_bytes,
            )
            return CurvePoint(batch=self.batch, without=self._baseline, recomputed=least)
        figures = Figures(
            outcome=Outcome.OK,
            samples_per_second=best.samples_per_second,
            relative_throughput=best.relative_throughput,
            peak_bytes=best.peak_bytes,
            batch=self.batch,
        )
        if best.config.is_none:
            return CurvePoint(batch=self.batch, without=figures)
        recomputed = Recomputed(
            study=self.result.study,
            description=best.description,
            figures=figures,
            least_peak_bytes=self.least_peak_bytes,
            config=best.config,
        )
        return CurvePoint(batch=self.batch, without=self._baseline, recomputed=recomputed)

    @property
    def is_open(self) -> bool:
        """Tell whether time or trials were over before it was known that a config fits, or that none does."""
        return self.result.verdict is None

    @property
    def _why_none(self) -> str:
        if self.result.search_end.is_early:
            return NOT_IN_TIME
        return TOO_FEW_TRIALS if self.is_open else NO_FIT

    @property
    def _baseline(self) -> Figures:
        """Return no recompute, which is not the answer.

        Where its steps hold the limit, its whole process needs more.
        """
        baseline = self.result.baseline
        outcome = Outcome.OVER_LIMIT if baseline.outcome is Outcome.OK else baseline.outcome
        return replace(baseline, outcome=outcome, batch=self.batch)


def is_any_open(tuned: Sequence[TunedBatch]) -> bool:
    """Tell whether more time or trials may find a config for a batch that has none, below any that no config holds."""
    too_large = min((entry.batch for entry in tuned if entry.result.verdict is Verdict.NO_FIT), default=math.inf)
    return any(entry.is_open and entry.batch < too_large for entry in tuned)


def point_beyond(batch: int, study: str) -> CurvePoint:
    """Return a batch that no config can make fit: the script has no memory for it before there is any."""
    recomputed = Recomputed(study=study, description=BEYOND, figures=Figures())
    return CurvePoint(batch=batch, without=Figures(outcome=Outcome.OOM, batch=batch), recomputed=recomputed)


def draw(without: Iterable[Figures], tuned: Sequence[TunedBatch], beyond: CurvePoint | None = None) -> list[CurvePoint]:
    """Return every batch that was measured, the smallest first.

    Args:
        without: Fresh processes without recompute.
        tuned: The batches with a study of their own.
        beyond: One that none can have; ``None`` where none was seen.
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


class Contenders:
    """Candidates for the answer.

    Args:
        curve: What was measured.
        may_answer: Whether a batch may be the answer, and not only what it is compared with.
    """

    def __init__(self, curve: Sequence[CurvePoint], may_answer: Callable[[int], bool]) -> None:
        fitting = [point for point in curve if point.fits_without]
        able = [point for point in fitting if may_answer(point.batch)]
        self.recomputed = _fastest_with([point for point in curve if point.fits_with])
        """The fastest batch with recompute."""
        self.plain = max(able, key=_speed_without, default=None)
        """The fastest batch without, of those that may be the answer."""
        self.baseline = max(fitting, key=_speed_without, default=None)
        """The fastest batch without, of all that were measured."""
        self.is_tuned = any(point.recomputed is not None for point in curve)
        """Tell whether any batch was tuned with recompute."""

    @property
    def ratio(self) -> float | None:
        """Throughput with recompute over that of the rival batch, as measured so far."""
        if self.recomputed is None or self.baseline is None:
            return None
        return _speed_with(self.recomputed) / _speed_without(self.baseline)

    @property
    def least_ratio(self) -> float:
        """Return the ratio that recompute has to reach: a gain, unless the rival batch was not asked for."""
        return 1 + MARGIN if self.baseline is self.plain else LEAST_RATIO

    def answer(self, comparison: Comparison | None) -> CurvePoint | None:
        """Return the batch to train with, by the best estimate; ``None`` where no batch fits."""
        if self.recomputed is None or self.plain is None:
            return self.recomputed or self.plain
        if comparison is None or comparison.ratio >= self.least_ratio:
            return self.recomputed
        # What is only compared with may be faster than all that was asked for.
        is_faster = _speed_with(self.recomputed) > _speed_without(self.plain)
        return self.recomputed if is_faster and self.plain is not self.baseline else self.plain

    def verdict(self, comparison: Comparison | None) -> Verdict:
        """Return the verdict on recompute where all batches were compared.

        Where no batch fits without recompute, the study of the batch to train with knows more.
        """
        if self.recomputed is not None:
            return judge(comparison, self.least_ratio)
        if self.plain is None:
            return Verdict.NO_FIT
        return Verdict.DOES_NOT_PAY if self.is_tuned else Verdict.NOT_NEEDED


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


class BatchAnswer:
    """Compares the batches of a curve.

    Args:
        context: What the tuning works with; its folder is that of the study that stands for all batches.
        chooser: Knows which batch may be the answer.
    """

    def __init__(self, context: TuningContext, chooser: BatchChooser) -> None:
        self._context, self._chooser = context, chooser

    def compare(
        self, curve: Sequence[CurvePoint], tuned: Sequence[TunedBatch], has_time: Callable[[], bool] = lambda: False
    ) -> Comparison | None:
        """Return the fastest batch with recompute beside the fastest without; ``None`` where one of them is missing.

        Args:
            curve: What was measured.
            tuned: The batches with a study of their own.
            has_time: Whether there is time for a further pair of processes; without it there is none.
        """
        contenders = Contenders(curve, self._chooser.may_answer)
        if contenders.ratio is None or contenders.recomputed is None or contenders.baseline is None:
            return None
        tuned_there = _result_at(contenders.recomputed.batch, tuned)
        if contenders.least_ratio == LEAST_RATIO and _has_compared(tuned_there, contenders.baseline.batch):
            return tuned_there.comparison
        assert tuned_there.best is not None, "it was the fastest"
        # They run under what would be emitted.
        environment = self._context.emit(tuned_there.best.config)
        return compare_in_pairs(
            fresh_runs(self._context, environment, contenders.recomputed.batch),
            fresh_runs(self._context, {}, contenders.baseline.batch),
            contenders.ratio,
            least_ratio=contenders.least_ratio,
            are_neighbours=False,
            has_time=has_time,
        )

    def result(
        self,
        curve: Sequence[CurvePoint],
        tuned: Sequence[TunedBatch],
        comparison: Comparison | None,
        search_end: SearchEnd,
        own_seconds: float,
    ) -> Result:
        """Return the answer.

        Args:
            curve: What was measured.
            tuned: The batches with a study of their own.
            comparison: What :meth:`compare` gave.
            search_end: Why no further config was measured.
            own_seconds: Time spent outside of these studies.
        """
        contenders = Contenders(curve, self._chooser.may_answer)
        point = contenders.answer(comparison)
        if point is not None and point is contenders.recomputed:
            base = _result_at(point.batch, tuned)
        else:
            base = self._result_without(point or (curve[0] if curve else None))
        is_open = bool(self._chooser.untuned(curve)) or is_any_open(tuned)
        compared = base.compared and not search_end.is_early and not is_open
        result = replace(
            base,
            study=self._context.folder.name,
            problem=self._context.problem.digest,
            verdict=_judge(base, contenders, comparison, compared=compared),
            rival=contenders.baseline.without if contenders.baseline is not None else None,
            comparison=comparison,
            compared=compared,
            curve=tuple(curve),
            warnings=tuple(dict.fromkeys(text for entry in tuned for text in entry.result.warnings)),
            unconfirmed=tuple(dict.fromkeys(text for entry in tuned for text in entry.result.unconfirmed)),
            trials=sum(entry.result.trials for entry in tuned),
            wall_seconds=own_seconds + sum(entry.result.wall_seconds for entry in tuned),
            transferred_from=None,
        )
        return result.ending(search_end)

    def _result_without(self, point: CurvePoint | None) -> Result:
        job, figures = self._context.job, point.without if point is not None else Figures()
        # The smallest batch that was measured may be one of an earlier list.
        is_answer = point is not None and point.fits_without and self._chooser.may_answer(point.batch)
        return Result(
            study=self._context.folder.name,
            problem=self._context.problem.digest,
            verdict=None,
            best=self._best_without(point) if point is not None and is_answer else None,
            baseline=figures,
            trials=0,
            device=self._context.detection.device,
            versions=self._context.detection.versions,
            command=job.plain_command(point.batch) if point is not None else job.command_of_any_batch(),
            script_at=job.script_at,
            command_gives_batch=job.takes_batch,
        )

    def _best_without(self, point: CurvePoint) -> Best:
        figures = point.without
        assert figures.samples_per_second is not None, "what fits was timed"
        assert figures.peak_bytes is not None, "what fits has a peak"
        return Best(
            config=Config(),
            description=self._context.detection.space.describe(Config()),
            batch=point.batch,
            samples_per_second=figures.samples_per_second,
            relative_throughput=None,
            peak_bytes=figures.peak_bytes,
            limit_bytes=self._context.problem.limit_bytes,
            confirmed=True,
        )


def _result_at(batch: int, tuned: Sequence[TunedBatch]) -> Result:
    return next(entry.result for entry in tuned if entry.batch == batch)


def _judge(base: Result, contenders: Contenders, comparison: Comparison | None, *, compared: bool) -> Verdict | None:
    """Return the verdict on recompute at all batches together.

    Args:
        base: The answer at the batch to train with.
        contenders: Who was in question.
        comparison: How the fastest with recompute compares with the fastest without.
        compared: Whether all batches were compared.
    """
    if base.best is None:
        return Verdict.NO_FIT if compared else None
    if not compared:
        return Verdict.UNDECIDED
    # The study of a batch has looked for a smaller one that fits without.
    return base.verdict if contenders.baseline is None else contenders.verdict(comparison)


def _has_compared(result: Result, rival_batch: int) -> bool:
    """Tell whether the study of the batch has compared its winner with this rival batch in neighbouring processes."""
    is_same = result.rival is not None and result.rival.batch == rival_batch
    return is_same and result.comparison is not None and result.comparison.pairs > 0


def says_more(known: Result, so_far: Result) -> bool:
    """Tell whether an earlier run knows more batches, kept knobs, or compared the same two in pairs of processes."""
    if known.best is not None and known.best.knobs:
        return len(known.curve) >= len(so_far.curve)
    pairs, earlier_pairs = (item.comparison.pairs if item.comparison is not None else 0 for item in (so_far, known))
    if len(known.curve) == len(so_far.curve) and known.best == so_far.best:
        return known.compared or earlier_pairs > pairs
    return len(known.curve) > len(so_far.curve)
