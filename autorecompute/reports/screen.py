"""An answer on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from autorecompute.figures import format_interval, format_relative
from autorecompute.measurement import Outcome
from autorecompute.reports.answer import (
    answer_lines,
    answer_sentences,
    describe_disturbed,
    describe_page,
    expected_step_seconds,
    lines_to_paste,
)
from autorecompute.reports.console import FittingTable, make_console, shorten
from autorecompute.units import format_bytes, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from autorecompute.backends.interface import Emission
    from autorecompute.figures import CurvePoint, Figures, KnobFigures, Recomputed
    from autorecompute.measurement import Trial
    from autorecompute.result import Result


CONFIG_WIDTH = 40
FIGURES = ("batch", "without", "peak", "with", "peak")


def curve_table(curve: Sequence[CurvePoint], chosen: int | None) -> FittingTable:
    """Samples/s and peak of every batch without recompute and with it; the chosen batch has a star."""
    table = FittingTable(columns=(*FIGURES, "config", "study"), spared=frozenset({"study"}))
    for point in curve:
        *figures, config, study = curve_cells(point, chosen)
        table.add_row(*figures, shorten(config, CONFIG_WIDTH), study)
    return table


def curve_cells(point: CurvePoint, chosen: int | None) -> tuple[str, ...]:
    """Return a batch's figures as people read them: those of ``FIGURES``, the config, and the study that tuned it."""
    return (
        f"{'* ' if point.batch == chosen else ''}{point.batch}",
        *_cells(point.without),
        *_cells_with(point.recomputed),
    )


def _cells(figures: Figures) -> tuple[str, str]:
    speed = format_samples(figures.samples_per_second)
    # What does not fit has a figure all the same: in brackets, as nobody can train that way.
    is_beyond = figures.samples_per_second is not None and figures.outcome is not Outcome.OK
    return (f"({speed})" if is_beyond else speed, format_bytes(figures.peak_bytes))


def _cells_with(recomputed: Recomputed | None) -> tuple[str, ...]:
    if recomputed is None:
        return ("", "", "", "")
    speed, peak = _cells(recomputed.figures)
    if recomputed.config is None:
        peak = format_bytes(recomputed.least_peak_bytes)
    return (speed, peak, recomputed.description, recomputed.study)


COLUMNS = ("knob", "with : without", "95 %", "peak", "change", "")


def knob_table(knobs: Sequence[KnobFigures]) -> RenderableType:
    """Return a row for each knob that was tried, and below them the others in a line each."""
    table = FittingTable(columns=COLUMNS)
    tried = [knob for knob in knobs if knob.outcome is not None]
    for knob in tried:
        *figures, end = knob_cells(knob)
        table.add_row(*figures, Text(end, style="bold green" if knob.kept else ""))
    untried = [Text(f"{knob.name} was {knob.sentence}") for knob in knobs if knob.outcome is None]
    return Group(*([table] if tried else []), *untried)


def knob_cells(knob: KnobFigures) -> tuple[str, ...]:
    """Return the cells of a knob that was tried, under ``COLUMNS``."""
    return (
        knob.name,
        format_relative(knob.throughput_ratio),
        "-" if knob.low is None or knob.high is None else format_interval(knob.low, knob.high),
        format_bytes(knob.peak_bytes),
        _format_change(knob),
        _describe_end(knob),
    )


def _format_change(knob: KnobFigures) -> str:
    if knob.peak_bytes is None or knob.base_peak_bytes is None:
        return "-"
    change = knob.peak_bytes - knob.base_peak_bytes
    return f"{'+' if change >= 0 else '-'}{format_bytes(abs(change))}"


def _describe_end(knob: KnobFigures) -> str:
    if knob.throughput_ratio is None:
        return f"{knob.outcome}: {knob.message}"
    return "; ".join(filter(None, ["kept" if knob.kept else "not kept", knob.message]))


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
