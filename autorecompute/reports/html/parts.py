"""Parts of the page: tables, and a row for each trial."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.figures import format_relative
from autorecompute.measurement import Trial
from autorecompute.plans.savings import BATCH
from autorecompute.reports.answer import expected_step_seconds
from autorecompute.studies import Problem, Sizes, StudyFolder, list_studies
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import trials_of
from autorecompute.units import format_bytes, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autorecompute.plans import Space
    from autorecompute.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A study with trials.

    Attributes:
        folder: Where it is kept.
        problem: What it is about.
        sizes: The sizes that it was measured at.
        trials: What it measured.
    """

    folder: StudyFolder
    problem: Problem
    sizes: Sizes
    trials: tuple[Trial, ...]

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of its steps."""
        return {**self.sizes.dims, BATCH: self.problem.batch}

    @property
    def space(self) -> Space:
        """Return its plans."""
        return self.sizes.space


def read_part(folder: StudyFolder) -> Part:
    """Return the study of a folder.

    Raises:
        UsageError: there is none, or another version of autorecompute made it.
        SetupError: it cannot be read.
    """
    head = folder.head()
    return Part(
        folder=folder,
        problem=head.problem,
        sizes=head.sizes,
        trials=tuple(trials_of(folder)),
    )


def read_parts(folder: StudyFolder, result: Result | None) -> list[Part]:
    """Return the study itself, or the studies of its batches, the smallest batch first."""
    whole = read_part(folder)
    if whole.problem.batch != SEVERAL_BATCHES:
        return [whole]
    names = _named_by(folder, result)
    found = (StudyFolder(name, folder.path.parent) for name in names)
    parts = [read_part(part) for part in found if part.exists()]
    return sorted(parts, key=lambda part: part.problem.batch)


def main_part(parts: Sequence[Part], result: Result | None) -> Part | None:
    """Return the one to look into: that of the batch to train with, or the largest that was tuned."""
    wanted = result.best.batch if result is not None and result.best is not None else None
    telling = [part for part in parts if part.trials]
    return next((part for part in telling if part.problem.batch == wanted), telling[-1] if telling else None)


def _named_by(folder: StudyFolder, result: Result | None) -> list[str]:
    if result is not None:
        return [point.recomputed.study for point in result.curve if point.recomputed is not None]
    # Nobody has drawn the curve yet: the studies stand beside this one.
    own = re.compile(rf"{re.escape(folder.name)}-b\d+")
    return [study.name for study in list_studies(folder.path.parent) if own.fullmatch(study.name)]


COLUMNS = (
    "#", "config", "outcome", "peak", "predicted peak", "samples/s", "relative", "step", "spread", "predicted step",
    "why", "log",
)  # fmt: skip
WORDS = frozenset({"config", "outcome", "why", "log"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the list.

    Attributes:
        text: What it says.
        key: What it is sorted by; empty where nothing was measured.
        small: What it says below that.
        folded: What it says when it is unfolded.
        link: Where it leads.
    """

    text: str
    key: str = ""
    small: str = ""
    folded: str = ""
    link: str = ""


def trial_columns(parts: Sequence[Part]) -> tuple[str, ...]:
    """Return the headings; of several batches each trial has its own."""
    return COLUMNS if len(parts) == 1 else ("batch", *COLUMNS)


def trial_rows(parts: Sequence[Part], page: Path) -> list[list[Cell]]:
    """Return a row for each trial of all parts."""
    rows = []
    for part in parts:
        batch = [] if len(parts) == 1 else [_number(str(part.problem.batch), part.problem.batch)]
        rows += [[*batch, *_cells(trial, _log_link(part, trial, page))] for trial in part.trials]
    return rows


def _cells(trial: Trial, link: str) -> list[Cell]:
    measurement, prediction = trial.measurement, trial.prediction
    speed, median = measurement.samples_per_second, measurement.median_step_seconds
    remarks = "; ".join(filter(None, [measurement.message, *measurement.marks]))
    step = expected_step_seconds(trial)
    expected = prediction.peak_bytes if prediction is not None else None
    spread = spread_of(trial)
    return [
        _number(str(trial.number), trial.number),
        Cell(text=trial.description, key=trial.description, folded=_choices_of(trial)),
        Cell(text=str(measurement.outcome), key=str(measurement.outcome), small=remarks),
        _number(format_bytes(measurement.peak_bytes), measurement.peak_bytes),
        _number(format_bytes(expected), expected),
        _number(format_samples(speed), speed),
        _number(format_relative(trial.relative_throughput), trial.relative_throughput),
        _number(format_seconds(median), median),
        _number("-" if spread is None else f"± {spread:.0%}", spread),
        _number(format_seconds(step), step),
        Cell(text=trial.reason, key=trial.reason),
        Cell(text="log" if link else "-", link=link),
    ]


def spread_of(trial: Trial) -> float | None:
    """Return half the range of its timed steps, as a share of their median; ``None`` where no step was timed."""
    steps, median = trial.measurement.step_seconds, trial.measurement.median_step_seconds
    return (max(steps) - min(steps)) / 2 / median if median else None


def _choices_of(trial: Trial) -> str:
    """Return the choices, where the description does not say them."""
    return " ".join(trial.config.texts) if trial.description.endswith(")") else ""


def _number(text: str, value: float | None) -> Cell:
    return Cell(text=text, key="" if value is None else repr(value))


def _log_link(part: Part, trial: Trial, page: Path) -> str:
    log = part.folder.trial(trial.number) / "output.log"
    if not log.is_file():
        return ""
    path = os.path.relpath(log, page.absolute().parent)
    # A relative link must not begin like a scheme: ``a:b/output.log``.
    return "./" + urllib.parse.quote(path, errors="surrogateescape")
