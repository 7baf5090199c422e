"""Parts of the page: the studies that it is about, and a row for each of their trials."""

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

    Cell = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A study with its trials and the sizes that they were measured at."""

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


def read_parts(folder: StudyFolder, result: Result | None) -> list[Part]:
    """Return the study itself, or the studies of its batches, the smallest batch first.

    Raises:
        UsageError: there is none, or another version of autorecompute made it.
        SetupError: it cannot be read.
    """
    if folder.head().problem.batch != SEVERAL_BATCHES:
        return [_read_part(folder)]
    found = (StudyFolder(name, folder.path.parent) for name in _named_by(folder, result))
    parts = [_read_part(part) for part in found if part.exists()]
    return sorted(parts, key=lambda part: part.problem.batch)


def _read_part(folder: StudyFolder) -> Part:
    head = folder.head()
    return Part(folder=folder, problem=head.problem, sizes=head.sizes, trials=tuple(trials_of(folder)))


def _named_by(folder: StudyFolder, result: Result | None) -> list[str]:
    if result is not None:
        return [point.recomputed.study for point in result.curve if point.recomputed is not None]
    # Nobody has drawn the curve yet: the studies stand beside this one.
    own = re.compile(rf"{re.escape(folder.name)}-b\d+")
    return [study.name for study in list_studies(folder.path.parent) if own.fullmatch(study.name)]


def main_part(parts: Sequence[Part], result: Result | None) -> Part | None:
    """Return the one to look into: that of the batch to train with, or the largest that was tuned."""
    wanted = result.best.batch if result is not None and result.best is not None else None
    telling = [part for part in parts if part.trials]
    return next((part for part in telling if part.problem.batch == wanted), telling[-1] if telling else None)


COLUMNS = (
    "#", "config", "outcome", "peak", "predicted peak", "samples/s", "relative", "step", "spread", "predicted step",
    "why", "log",
)  # fmt: skip
WORDS = frozenset({"config", "outcome", "why", "log"})
"""The headings whose columns are no figures."""


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
    step, spread = expected_step_seconds(trial), spread_of(trial)
    expected = prediction.peak_bytes if prediction is not None else None
    # The choices, where the description does not say them.
    choices = " ".join(trial.config.texts) if trial.description.endswith(")") else ""
    return [
        _number(str(trial.number), trial.number),
        _cell(trial.description, trial.description, folded=choices),
        _cell(str(measurement.outcome), str(measurement.outcome), small=remarks),
        _number(format_bytes(measurement.peak_bytes), measurement.peak_bytes),
        _number(format_bytes(expected), expected),
        _number(format_samples(speed), speed),
        _number(format_relative(trial.relative_throughput), trial.relative_throughput),
        _number(format_seconds(median), median),
        _number("-" if spread is None else f"± {spread:.0%}", spread),
        _number(format_seconds(step), step),
        _cell(trial.reason, trial.reason),
        _cell("log" if link else "-", link=link),
    ]


def spread_of(trial: Trial) -> float | None:
    """Return half the range of its timed steps, as a share of their median; ``None`` where no step was timed."""
    steps, median = trial.measurement.step_seconds, trial.measurement.median_step_seconds
    return (max(steps) - min(steps)) / 2 / median if median else None


def _cell(text: str, key: str = "", *, small: str = "", folded: str = "", link: str = "") -> Cell:
    """Return a text, what it is sorted by, what stands below it or is unfolded, and where it leads."""
    return {"text": text, "key": key, "small": small, "folded": folded, "link": link}


def _number(text: str, value: float | None) -> Cell:
    return _cell(text, "" if value is None else repr(value))


def _log_link(part: Part, trial: Trial, page: Path) -> str:
    log = part.folder.trial(trial.number) / "output.log"
    if not log.is_file():
        return ""
    path = os.path.relpath(log, page.absolute().parent)
    # A relative link must not begin like a scheme: ``a:b/output.log``.
    return "./" + urllib.parse.quote(path, errors="surrogateescape")
