"""Two studies side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autorecompute.ranges import Count
from autorecompute.reports.answer_json import Answer
from autorecompute.reports.console import make_console
from autorecompute.reports.identity_parts import differences_table
from autorecompute.studies.identity import Difference
from autorecompute.studies.tuned import Tuned
from autorecompute.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.figures import Figures
    from autorecompute.result import Best, Result
    from autorecompute.studies.records import StudyRecords

UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudy:
    """One of two studies.

    Attributes:
        study: Its name.
        problem: Digest of its problem.
        trials: How many configs it measured.
        result: Its answer; ``None`` as long as it has none.
    """

    study: str
    problem: str
    trials: Count
    result: Answer | None

    @classmethod
    def of(cls, records: StudyRecords, answer: Answer | None) -> ComparedStudy:
        """A study, and its answer; ``None`` as long as it has none."""
        head = records.head
        return cls(study=head.study, problem=head.problem.digest, trials=_count_trials(records), result=answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStudies:
    """Two studies side by side.

    Attributes:
        differences: In what their problems differ; empty where in nothing.
        studies: Both, as they were named.
    """

    differences: tuple[Difference, ...]
    studies: tuple[ComparedStudy, ...]

    @classmethod
    def of(cls, first: StudyRecords, second: StudyRecords, answers: Sequence[Answer | None]) -> ComparedStudies:
        """The same as :func:`print_comparison` prints.

        Args:
            first: A study.
            second: Another one.
            answers: The answer of each of them; ``None`` as long as there is none.
        """
        return cls(
            differences=tuple(Tuned.of(first.head).compare(Tuned.of(second.head))),
            studies=tuple(map(ComparedStudy.of, (first, second), answers)),
        )


def print_comparison(first: StudyRecords, second: StudyRecords) -> None:
    """Prints in what the problems differ, and what each study found out."""
    console, names = make_console(), (first.head.study, second.head.study)
    differences = Tuned.of(first.head).compare(Tuned.of(second.head))
    if differences:
        console.print(differences_table(differences, *names))
    else:
        console.print(Text("Both are about the same problem."))
    console.print()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", *names):
        table.add_column(Text(column), overflow="fold")
    for name, tell in _figures(first, second).items():
        table.add_row(name, Text(tell(first)), Text(tell(second)))
    console.print(table)


def _figures(*studies: StudyRecords) -> dict[str, Callable[[StudyRecords], str]]:
    presets = dict.fromkeys(name for study in studies if study.result is not None for name in study.result.presets)
    return {
        "verdict": _of_result(lambda result: result.verdict_sentence),
        "best": _of_best(lambda best: best.description),
        "peak": _of_best(lambda best: format_bytes(best.peak_bytes)),
        "limit": lambda study: format_bytes(study.head.problem.limit_bytes),
        "throughput": _of_best(lambda best: format_rate(best.samples_per_second)),
        "relative": _of_best(lambda best: best.relative_sentence),
        "baseline": _of_result(lambda result: _describe(result.baseline)),
        **{name.replace("_", " "): _of_preset(name) for name in presets},
        "rival": _of_result(lambda result: UNKNOWN if result.rival is None else _describe(result.rival)),
        "trials": lambda study: str(_count_trials(study)),
        "wall time": _of_result(lambda result: format_seconds(result.wall_seconds)),
    }


def _count_trials(study: StudyRecords) -> int:
    # Those of several batches are in the studies of each.
    return study.result.trials if study.result is not None and study.result.curve else len(study.trials)


def _of_result(tell: Callable[[Result], str]) -> Callable[[StudyRecords], str]:
    return lambda study: UNKNOWN if study.result is None else tell(study.result)


def _of_best(tell: Callable[[Best], str]) -> Callable[[StudyRecords], str]:
    return _of_result(lambda result: UNKNOWN if result.best is None else tell(result.best))


def _of_preset(name: str) -> Callable[[StudyRecords], str]:
    return _of_result(lambda result: _describe(result.presets[name]) if name in result.presets else UNKNOWN)


def _describe(figures: Figures) -> str:
    if figures.outcome is None:
        return "not measured"
    batch = "" if figures.batch is None else f" at batch {figures.batch}"
    return f"{figures.outcome}{batch}, {format_bytes(figures.peak_bytes)}, {format_rate(figures.samples_per_second)}"
