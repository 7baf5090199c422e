"""An answer as JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated

from autorecompute.codec import INLINED, Absent
from autorecompute.figures import CurvePoint, Figures, Recomputed
from autorecompute.measurement import Trial
from autorecompute.ranges import Batch, Rate, Ratio
from autorecompute.reports.answer import Summary, runners_up, summarise
from autorecompute.result import Best, Result
from autorecompute.studies.problem import Difference, Provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.backends.interface import Emission


@dataclass(frozen=True, slots=True, kw_only=True)
class BestConfig:
    """The config to train with."""

    best: Annotated[Best, INLINED]
    env: Annotated[dict[str, str] | None, "Variables that switch it on; ``None`` if imported and not checked here."]


@dataclass(frozen=True, slots=True, kw_only=True)
class With(Recomputed):
    """Answer of a batch with recompute, its figures beside its study."""

    figures: Annotated[Figures, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A batch on the curve of throughput against batch."""

    batch: Annotated[Batch, "Samples a forward."]
    without: Annotated[Figures, "Without recompute."]
    with_: Annotated[With | None, "With it; ``None`` where the batch fits without, or was not tuned."]

    @classmethod
    def of(cls, point: CurvePoint) -> Point:
        """Return the point of an answer's curve."""
        found = point.recomputed
        told = None if found is None else With(**{field.name: getattr(found, field.name) for field in fields(found)})
        return cls(batch=point.batch, without=point.without, with_=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """A config that fits and was not the best."""

    description: Annotated[str, "The config in a few words."]
    figures: Annotated[Figures, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of a study."""

    result: Annotated[Result, INLINED]
    verdict_sentence: Annotated[str, "The finding about recompute, in words."]
    best: Annotated[BestConfig | None, "The config to train with; ``None`` where none fits."]
    curve: Annotated[tuple[Point, ...], "Every measured batch, the smallest first; empty where one was asked for."]
    runners_up: Annotated[tuple[RunnerUp, ...], "The fastest others that fit, at the batch of ``best``."]
    predictions: Annotated[Summary | None, "Errors of predictions at the batch of ``best``; ``None`` without any."]

    @classmethod
    def of(cls, result: Result, trials: Sequence[Trial], rendered: Emission | None) -> Answer:
        """Return the answer, with all figures of the last screen. ``trials`` are those that it was chosen from."""
        env = rendered.variables if rendered is not None else None
        return cls(
            result=result,
            verdict_sentence=result.verdict_sentence,
            best=None if result.best is None else BestConfig(best=result.best, env=env),
            curve=tuple(map(Point.of, result.curve)),
            runners_up=tuple(RunnerUp(description=name, figures=told) for name, told in runners_up(result, trials)),
            predictions=summarise(trials),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTrial:
    """One config as measured in a study, with all its samples and the figures that follow from them."""

    trial: Annotated[Trial, INLINED]
    hash: Annotated[str, "Twelve hexadecimal digits, the same for equal configs."]
    relative_throughput: Annotated[Ratio | None, "Throughput over the reference's of the same minutes."]
    samples_per_second: Annotated[Rate | None, "Throughput of the median step; ``None`` where none was timed."]

    @classmethod
    def of(cls, trial: Trial) -> MeasuredTrial:
        """Return a trial of a study."""
        return cls(
            trial=trial,
            hash=trial.config.hash,
            relative_throughput=trial.relative_throughput,
            samples_per_second=trial.measurement.samples_per_second,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestStudy:
    """A stored study that another is like."""

    study: Annotated[str, "Its name."]
    is_shipped: Annotated[bool, "True if it comes with autorecompute."]
    has_same_plans: Annotated[bool, "True if a tuning starts from it: its plans are the same."]
    differences: Annotated[tuple[Difference, ...], "Differences of their problems; empty where there are none."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStudy:
    """A study with all its trials."""

    provenance: Annotated[Provenance, "The study's problem, and where it was tuned."]
    identity: Annotated[dict[str, str], "Parts of what makes two tunings the same, in words."]
    result: Annotated[Answer | None, "Its answer; ``None`` as long as it has none."]
    trials: Annotated[tuple[MeasuredTrial, ...], "Every trial, in the order they ended."]
    nearest: Annotated[NearestStudy | Absent | None, "With ``--why``: the study most like it, if there is any."]
