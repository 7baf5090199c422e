"""The curve of throughput against batch, and what it says: which batch, and whether recompute pays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from autorecompute.figures import Comparison, CurvePoint, Figures, Recomputed
from autorecompute.measurement import Outcome
from autorecompute.result import Result
from autorecompute.studies.storage import read_trials
from autorecompute.verdict import LEAST_RATIO, MARGIN, Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autorecompute.studies import StudyFolder

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
        """Return what a study that was tuned tells of its batch."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Contenders:
    """Who is in question for the answer.

    Attributes:
        recomputed: The fastest batch with recompute.
        plain: The fastest batch without, of those that may be the answer.
        baseline: The fastest batch without, of all that were measured.
        is_tuned: Whether any batch was tuned with recompute.
    """

    recomputed: CurvePoint | None
    plain: CurvePoint | None
    baseline: CurvePoint | None
    is_tuned: bool

    @property
    def ratio(self) -> float | None:
        """Throughput with recompute over that of the rival batch, as measured so far."""
        if self.recomputed is None or self.baseline is None:
            return None
        return _speed_with(self.recomputed) / _speed_without(self.baseline)

    @property
    def least_ratio(self) -> float:
        """Return what recompute has to reach: a gain, unless the rival batch is none of those that were asked for."""
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
        """Return what is said of recompute where all batches were compared.

        Where no batch fits without recompute, the study of the batch to train with knows more.
        """
        if self.recomputed is not None:
            return judge(comparison, self.least_ratio)
        if self.plain is None:
            return Verdict.NO_FIT
        return Verdict.DOES_NOT_PAY if self.is_tuned else Verdict.NOT_NEEDED


def find_contenders(curve: Sequence[CurvePoint], may_answer: Callable[[int], bool]) -> Contenders:
    """Find who is in question.

    Args:
        curve: What was measured.
        may_answer: Whether a batch may be the answer, and not only what it is compared with.
    """
    fitting = [point for point in curve if point.fits_without]
    return Contenders(
        recomputed=_fastest_with([point for point in curve if point.fits_with]),
        plain=max((point for point in fitting if may_answer(point.batch)), key=_speed_without, default=None),
        baseline=max(fitting, key=_speed_without, default=None),
        is_tuned=any(point.recomputed is not None for point in curve),
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
