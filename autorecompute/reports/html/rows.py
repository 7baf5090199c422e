"""The list of all trials: every figure as people read it, and as a number to sort by."""

from __future__ import annotations

import os
import urllib.parse
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.figures import format_relative
from autorecompute.reports.predictions import expected_step_seconds
from autorecompute.units import format_bytes, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autorecompute.measurement import Trial
    from autorecompute.reports.html.parts import Part

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
    """Return a row for each trial of all parts.

    Args:
        parts: The studies.
        page: The file that links lead from.
    """
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
