"""An answer on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from autorecompute.figures import format_interval, format_relative
from autorecompute.measurement import Outcome
from autorecompute.reports.answer import (
    ANSWER_COLUMNS,
    BEST,
    answer_lines,
    answer_sentences,
    describe_disturbed,
    describe_page,
    expected_step_seconds,
    lines_to_paste,
)
from autorecompute.reports.console import fit_table, make_console, shorten
from autorecompute.units import format_bytes, format_samples, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console, Group
    from rich.table import Table

    from autorecompute.backends.interface import Emission
    from autorecompute.figures import CurvePoint, Figures, KnobFigures
    from autorecompute.measurement import Trial
    from autorecompute.result import Result


CONFIG_WIDTH = 40
FIGURES = ("batch", "without", "peak", "with", "peak")


def curve_cells(point: CurvePoint, chosen: int | None) -> tuple[str, ...]:
    """Return a batch's figures as people read them: those of ``FIGURES``, the config, and the study that tuned it.

    The chosen batch has a star.
    """
    batch = f"{'* ' if point.batch == chosen else ''}{point.batch}"
    found = point.recomputed
    if found is None:
        return (batch, *_cells(point.without), "", "", "", "")
    speed, peak = _cells(found.figures)
    if found.config is None:
        peak = format_bytes(found.least_peak_bytes)
    return (batch, *_cells(point.without), speed, peak, found.description, found.study)


def _cells(figures: Figures) -> tuple[str, str]:
    speed = format_samples(figures.samples_per_second)
    # What does not fit has a figure all the same: in brackets, as nobody can train that way.
    is_beyond = figures.samples_per_second is not None and figures.outcome is not Outcome.OK
    return (f"({speed})" if is_beyond else speed, format_bytes(figures.peak_bytes))


COLUMNS = ("knob", "with : without", "95 %", "peak", "change", "")


def knob_cells(knob: KnobFigures) -> tuple[str, ...]:
    """Return the cells of a knob that was tried, under ``COLUMNS``."""
    change = "-"
    if knob.peak_bytes is not None and knob.base_peak_bytes is not None:
        more = knob.peak_bytes - knob.base_peak_bytes
        change = f"{'+' if more >= 0 else '-'}{format_bytes(abs(more))}"
    end = f"{knob.outcome}: {knob.message}"
    if knob.throughput_ratio is not None:
        end = "; ".join(filter(None, ["kept" if knob.kept else "not kept", knob.message]))
    return (
        knob.name,
        format_relative(knob.throughput_ratio),
        "-" if knob.low is None or knob.high is None else format_interval(knob.low, knob.high),
        format_bytes(knob.peak_bytes),
        change,
        end,
    )


NAME_WIDTH = 60
TRIAL_COLUMNS = (
    "#", "config", "why", "peak", "expected", "samples/s", "relative", "step", "expected", "outcome",
)  # fmt: skip
SPARED = frozenset({"why", "expected", "step"})


def print_result(
    result: Result, trials: Sequence[Trial], folder: Path, rendered: Emission | None, console: Console | None = None
) -> None:
    """Print the answer: the table, the verdict and the lines to paste. ``trials`` are those that it was chosen from."""
    console = console or make_console()
    if result.curve:
        console.print(Text("samples/s by batch", style="italic"))
        console.print(_curve_table(result, console.width), Text(), sep="\n")
    if result.trials or result.best is not None:
        console.print(_answer_table(result, trials, console.width), Text(), sep="\n")
    for line in (*answer_sentences(result, trials), f"study: {folder}", describe_page(folder), ""):
        console.print(Text(line))
    if result.knobs:
        _print_knobs(result.knobs, console)
    for line in lines_to_paste(result, rendered):
        # A line to paste must not be broken or cut, however narrow the terminal is.
        console.print(Text(line), soft_wrap=True)


def _curve_table(result: Result, width: int) -> Table | Group:
    chosen = result.best.batch if result.best is not None else None
    rows = []
    for point in result.curve:
        *figures, config, study = curve_cells(point, chosen)
        rows.append((*figures, shorten(config, CONFIG_WIDTH), study))
    return fit_table((*FIGURES, "config", "study"), rows, width, spared={"study"})


def _answer_table(result: Result, trials: Sequence[Trial], width: int) -> Table | Group:
    rows: list[tuple[str | Text, ...]] = []
    for role, config, *figures, outcome in answer_lines(result, trials):
        styles = ("bold", "bold green") if role == BEST else ("", "")
        rows.append((Text(role, styles[0]), shorten(config, NAME_WIDTH), *figures, Text(outcome, styles[1])))
    return fit_table(ANSWER_COLUMNS, rows, width)


def _print_knobs(knobs: Sequence[KnobFigures], console: Console) -> None:
    rows: list[tuple[str | Text, ...]] = []
    for knob in knobs:
        if knob.outcome is not None:
            *figures, end = knob_cells(knob)
            rows.append((*figures, Text(end, style="bold green" if knob.kept else "")))
    if rows:
        console.print(fit_table(COLUMNS, rows, console.width))
    for knob in knobs:
        if knob.outcome is None:
            console.print(Text(f"{knob.name} was {knob.sentence}"))
    console.print()


def print_trials(trials: Sequence[Trial], console: Console | None = None) -> None:
    """Print every trial of a study."""
    rows = [
        (
            str(trial.number),
            shorten(trial.description, NAME_WIDTH),
            shorten(trial.reason, NAME_WIDTH),
            format_bytes(trial.measurement.peak_bytes),
            "-" if trial.prediction is None else format_bytes(trial.prediction.peak_bytes),
            format_samples(trial.measurement.samples_per_second),
            format_relative(trial.relative_throughput),
            format_seconds(trial.measurement.median_step_seconds),
            format_seconds(expected_step_seconds(trial)),
            str(trial.measurement.outcome),
        )
        for trial in trials
    ]
    console = console or make_console()
    console.print(fit_table(TRIAL_COLUMNS, rows, console.width, SPARED))
    if disturbed := describe_disturbed(trials):
        numbers = ", ".join(str(trial.number) for trial in trials if trial.measurement.marks)
        console.print(Text(f"{disturbed}: {numbers}"))
