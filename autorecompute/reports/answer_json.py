"""An answer as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from autorecompute.codec import INLINED, Absent, Document
from autorecompute.figures import CurvePoint, Figures
from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.ranges import Batch, PositiveBytes, Rate, Ratio
from autorecompute.reports.answer import Summary, runners_up, summarise
from autorecompute.reports.console import make_console
from autorecompute.result import Best, Result
from autorecompute.studies.problem import Difference, Provenance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.backends.interface import Emission
    from autorecompute.studies.transfer import StoredStudy
    from autorecompute.studies.tuned import Tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestStudy:
    """A stored study that another is like."""

    study: Annotated[str, "Its name."]
    is_shipped: Annotated[bool, "Whether it comes with autorecompute."]
    has_same_plans: Annotated[bool, "Whether a tuning starts from it: its plans are the same."]
    differences: Annotated[tuple[Difference, ...], "In what their problems differ; empty where in nothing."]

    @classmethod
    def of(cls, tuned: Tuned, nearest: StoredStudy) -> NearestStudy:
        """Return the study that is nearest to another one."""
        return cls(
            study=nearest.name,
            is_shipped=nearest.is_shipped,
            has_same_plans=nearest.has_same_plans,
            differences=tuple(tuned.compare(nearest.tuned)),
        )


def print_identity(digest: str, parts: Mapping[str, str]) -> None:
    """Print what makes two tunings the same."""
    table = _table()
    for name, value in parts.items():
        table.add_row(name, Text(value))
    console = make_console()
    console.print(Text(f"problem {digest}"))
    console.print(table)


def print_nearest(tuned: Tuned, nearest: StoredStudy | None) -> None:
    """Print which part differs from the nearest stored study, and what follows from that."""
    console = make_console()
    if nearest is None:
        console.print(Text("There is no other study to start from."))
        return
    shipped = ", which comes with autorecompute" if nearest.is_shipped else ""
    console.print(Text(f"nearest: study {nearest.name}{shipped}"))
    differences = tuned.compare(nearest.tuned)
    if differences:
        table = _table("", "here", "there")
        for difference in differences:
            table.add_row(difference.part, Text(difference.here), Text(difference.there))
        console.print(table)
    console.print(Text(_consequence(nearest, differences)))


def _consequence(nearest: StoredStudy, differences: Sequence[Difference]) -> str:
    if not nearest.has_same_plans:
        return "its plans are others, or mean something else: it tells nothing of this problem"
    if differences or nearest.is_shipped:
        return "its plans are the same: a tuning starts from what it knows, unless --fresh is given"
    return "it is about the same problem: its answer is taken over, unless --fresh is given"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(columns))
    table.add_column(columns[0] if columns else "", style="dim", no_wrap=True)
    for column in columns[1:] or ("",):
        table.add_column(column, overflow="fold")
    return table


@dataclass(frozen=True, slots=True, kw_only=True)
class BestConfig(Document):
    """The config to train with."""

    best: Annotated[Best, INLINED]
    env: Annotated[
        dict[str, str] | None,
        "The variables that switch it on; ``None`` where the study was imported and not checked here.",
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class With(Document):
    """Answer of a batch with recompute."""

    figures: Annotated[Figures, INLINED]
    study: Annotated[str, "The study that tuned it."]
    description: Annotated[str, "The best config in a few words, or that none fits."]
    least_peak_bytes: Annotated[PositiveBytes | None, "The least peak that any config was seen to have."]
    config: Annotated[Config | None, "Its choices; ``None`` where none fits."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Document):
    """A batch on the curve of throughput against batch."""

    batch: Annotated[Batch, "Samples a forward."]
    without: Annotated[Figures, "Without recompute."]
    with_: Annotated[With | None, "With it; ``None`` where the batch fits without, or was not tuned."]

    @classmethod
    def of(cls, point: CurvePoint) -> Point:
        """Return the point of an answer's curve."""
        told = point.recomputed
        if told is None:
            return cls(batch=point.batch, without=point.without, with_=None)
        recomputed = With(
            figures=told.figures,
            study=told.study,
            description=told.description,
            least_peak_bytes=told.least_peak_bytes,
            config=told.config,
        )
        return cls(batch=point.batch, without=point.without, with_=recomputed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp(Document):
    """A config that fits and was not the best."""

    description: Annotated[str, "The config in a few words."]
    figures: Annotated[Figures, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Document):
    """The answer of a study."""

    result: Annotated[Result, INLINED]
    verdict_sentence: Annotated[str, "What was found out about recompute, in words."]
    best: Annotated[BestConfig | None, "The config to train with; ``None`` where none fits."]
    curve: Annotated[
        tuple[Point, ...], "Every batch that was measured, the smallest first; empty where one batch was asked for."
    ]
    runners_up: Annotated[
        tuple[RunnerUp, ...],
        "The fastest others that fit, as on the last screen; of several batches, at that of ``best``.",
    ]
    predictions: Annotated[
        Summary | None,
        "How far off the predictions were, of several batches at that of ``best``; ``None`` without any.",
    ]

    @classmethod
    def of(cls, result: Result, trials: Sequence[Trial], rendered: Emission | None) -> Answer:
        """Return the answer, with all figures of the last screen.

        Args:
            result: The answer.
            trials: The trials that it was chosen from.
            rendered: What to train with; ``None`` where there is nothing.
        """
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
class MeasuredTrial(Document):
    """One config as measured in a study, with all its samples and the figures that follow from them."""

    trial: Annotated[Trial, INLINED]
    hash: Annotated[str, "Twelve hexadecimal digits, the same for equal configs."]
    relative_throughput: Annotated[
        Ratio | None, "Throughput relative to the reference's of the same minutes; ``None`` without one."
    ]
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
class ShownStudy(Document):
    """A study with all its trials."""

    provenance: Annotated[Provenance, "What the study is about."]
    identity: Annotated[
        dict[str, str], "The parts of what makes two tunings the same, in words: ``batch``, for instance."
    ]
    result: Annotated[Answer | None, "Its answer; ``None`` as long as it has none."]
    trials: Annotated[tuple[MeasuredTrial, ...], "Every trial, in the order they ended."]
    nearest: Annotated[
        NearestStudy | Absent | None,
        "With ``--why`` only: the stored study that it is most like; ``None`` where there is no other.",
    ]
