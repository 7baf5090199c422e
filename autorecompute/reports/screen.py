"""The last screen of a tuning, and the tables of ``show``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autorecompute.figures import format_relative
from autorecompute.reports.answer import (
    answer_lines,
    answer_sentences,
    describe_disturbed,
    describe_page,
    lines_to_paste,
)
from autorecompute.reports.console import make_console
from autorecompute.reports.curve import curve_table
from autorecompute.reports.fitting import FittingTable
from autorecompute.reports.knob_table import knob_table
from autorecompute.reports.predictions import expected_step_seconds
from autorecompute.reports.words import shorten
from autorecompute.units import format_bytes, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from autorecompute.backends.interface import Emission
    from autorecompute.measurement import Trial
    from autorecompute.result import Result

NAME_WIDTH = 60
ANSWER_COLUMNS = ("", "config", "peak", "throughput", "relative", "outcome")
TRIAL_COLUMNS = (
    "#", "config", "why", "peak", "expected", "samples/s", "relative", "step", "expected", "outcome",
)  # fmt: skip
SPARED = frozenset({"why", "expected", "step"})


def print_result(
    result: Result, trials: Sequence[Trial], folder: Path, rendered: Emission | None, console: Console | None = None
) -> None:
    """Print the answer: the table, the verdict and the lines to paste.

    Args:
        result: The answer.
        trials: The trials that it was chosen from.
        folder: The study's folder.
        rendered: What to train with; ``None`` where there is nothing.
        console: Where to print.
    """
    console = console or make_console()
    if result.curve:
        chosen = result.best.batch if result.best is not None else None
        console.print(Text("samples/s by batch", style="italic"))
        console.print(Group(curve_table(result.curve, chosen), Text()))
    if result.trials or result.best is not None:
        console.print(Group(_answer_table(result, trials), Text()))
    console.print(Group(*_sentences(result, trials, folder)))
    if result.knobs:
        console.print(Group(knob_table(result.knobs), Text()))
    for line in lines_to_paste(result, rendered):
        # A line to paste must not be broken or cut, however narrow the terminal is.
        console.print(Text(line), soft_wrap=True)


def print_trials(trials: Sequence[Trial], console: Console | None = None) -> None:
    """Print every trial of a study."""
    table = FittingTable(columns=TRIAL_COLUMNS, spared=SPARED)
    for trial in trials:
        measurement = trial.measurement
        table.add_row(
            str(trial.number),
            shorten(trial.description, NAME_WIDTH),
            shorten(trial.reason, NAME_WIDTH),
            format_bytes(measurement.peak_bytes),
            "-" if trial.prediction is None else format_bytes(trial.prediction.peak_bytes),
            format_samples(measurement.samples_per_second),
            format_relative(trial.relative_throughput),
            format_seconds(measurement.median_step_seconds),
            format_seconds(expected_step_seconds(trial)),
            str(measurement.outcome),
        )
    console = console or make_console()
    console.print(table)
    if disturbed := describe_disturbed(trials):
        numbers = ", ".join(str(trial.number) for trial in trials if trial.measurement.marks)
        console.print(Text(f"{disturbed}: {numbers}"))


def _answer_table(result: Result, trials: Sequence[Trial]) -> FittingTable:
    table = FittingTable(columns=ANSWER_COLUMNS)
    for line in answer_lines(result, trials):
        table.add_row(
            Text(line.role, style="bold" if line.is_best else ""),
            shorten(line.config, NAME_WIDTH),
            line.peak,
            line.throughput,
            line.relative,
            Text(line.outcome, style="bold green" if line.is_best else ""),
        )
    return table


def _sentences(result: Result, trials: Sequence[Trial], folder: Path) -> list[RenderableType]:
    lines = [*answer_sentences(result, trials), f"study: {folder}", describe_page(folder), ""]
    return [Text(line) for line in lines]
