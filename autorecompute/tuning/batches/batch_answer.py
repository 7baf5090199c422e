"""From a curve to the answer of a study of several batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.figures import Figures
from autorecompute.plans import Config
from autorecompute.result import Best, Result, SearchEnd
from autorecompute.tuning.answer.paired_comparison import PairedComparison
from autorecompute.tuning.answer.rivals import fresh_runs
from autorecompute.tuning.batches.throughput_curve import Contenders, find_contenders, is_any_open
from autorecompute.verdict import LEAST_RATIO, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.figures import Comparison, CurvePoint
    from autorecompute.search import BatchChooser
    from autorecompute.tuning.batches.throughput_curve import TunedBatch
    from autorecompute.tuning.context import TuningContext


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
        contenders = self._contenders(curve)
        if contenders.ratio is None or contenders.recomputed is None or contenders.baseline is None:
            return None
        tuned_there = self._result_at(contenders.recomputed.batch, tuned)
        if contenders.least_ratio == LEAST_RATIO and _has_compared(tuned_there, contenders.baseline.batch):
            return tuned_there.comparison
        assert tuned_there.best is not None, "it was the fastest"
        # They run under what would be emitted.
        environment = self._context.emit(tuned_there.best.config)
        comparison = PairedComparison(
            fresh_runs(self._context, environment, contenders.recomputed.batch),
            fresh_runs(self._context, {}, contenders.baseline.batch),
            least_ratio=contenders.least_ratio,
            has_time=has_time,
        )
        return comparison.run(contenders.ratio, are_neighbours=False)

    def so_far(self, curve: Sequence[CurvePoint], tuned: Sequence[TunedBatch], own_seconds: float) -> Result:
        """Return the answer that an interruption leaves: what :meth:`result` gives without a further process."""
        return self.result(curve, tuned, self.compare(curve, tuned), SearchEnd.INTERRUPTED, own_seconds)

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
        contenders = self._contenders(curve)
        point = contenders.answer(comparison)
        if point is not None and point is contenders.recomputed:
            base = self._result_at(point.batch, tuned)
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

    def _contenders(self, curve: Sequence[CurvePoint]) -> Contenders:
        return find_contenders(curve, self._chooser.may_answer)

    @staticmethod
    def _result_at(batch: int, tuned: Sequence[TunedBatch]) -> Result:
        return next(entry.result for entry in tuned if entry.batch == batch)

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


def _judge(base: Result, contenders: Contenders, comparison: Comparison | None, *, compared: bool) -> Verdict | None:
    """Return what is said of recompute at all batches together.

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
