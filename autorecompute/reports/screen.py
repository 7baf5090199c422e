"""The last screen of a tuning, and the tables of ``show``."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from autorecompute.reports.words import VERDICTS, format_rate, format_relative, format_spread, shorten
from autorecompute.result import Figures
from autorecompute.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autorecompute.measurement import GradientCheck, Trial
    from autorecompute.result import Result

RUNNERS_UP = 3
NAME_WIDTH = 60
FILE_WIDTH = 250


def make_console() -> Console:
    """Standard output, wide where it is no terminal: a file has no edge at which to wrap."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=FILE_WIDTH)


def print_result(result: Result, trials: Sequence[Trial], folder: Path, console: Console | None = None) -> None:
    """Prints the answer: the table, the verdict and the lines to paste."""
    console = console or make_console()
    console.print(Group(_answer_table(result, trials), Text(), *_verdict_lines(result, folder)))
    for line in _lines_to_paste(result):
        # A line to paste must not be broken or cut, however narrow the terminal is.
        console.print(Text(line), soft_wrap=True)


def print_trials(trials: Sequence[Trial], console: Console | None = None) -> None:
    """Prints every trial of a study."""
    table = _table("#", "config", "why", "peak", "samples/s", "relative", "step", "outcome")
    for trial in trials:
        measurement = trial.measurement
        table.add_row(
            str(trial.number),
            Text(shorten(trial.description, NAME_WIDTH)),
            Text(shorten(trial.reason, NAME_WIDTH // 2)),
            format_bytes(measurement.peak_bytes),
            "-" if measurement.samples_per_second is None else f"{measurement.samples_per_second:.1f}",
            format_relative(trial.relative_throughput),
            format_seconds(measurement.median_step_seconds),
            str(measurement.outcome),
        )
    (console or make_console()).print(table)


def _answer_table(result: Result, trials: Sequence[Trial]) -> Table:
    table = _table("", "config", "peak", "throughput", "relative", "outcome")
    _add(table, "baseline", "none", result.baseline)
    for name, figures in result.presets.items():
        _add(table, "preset", name.replace("_", " "), figures)
    best = result.best
    if best is not None:
        confirmed = Text("confirmed" if best.confirmed else "not confirmed", style="bold green")
        table.add_row(
            Text("best", style="bold"),
            Text(shorten(best.description, NAME_WIDTH)),
            format_bytes(best.peak_bytes),
            format_rate(best.samples_per_second),
            format_spread(best),
            confirmed,
        )
    for trial in _runners_up(result, trials):
        figures = Figures.of(trial)
        relative = result.raced.get(trial.config.hash, figures.relative_throughput)
        _add(table, "runner-up", trial.description, replace(figures, relative_throughput=relative))
    if result.rival is not None:
        _add(table, "rival", f"none at batch {result.rival.batch}", result.rival)
    return table


def _runners_up(result: Result, trials: Sequence[Trial]) -> list[Trial]:
    best = result.best.config if result.best is not None else None
    others = [trial for trial in trials if trial.fits and trial.config != best]
    speeds = {trial.number: result.raced.get(trial.config.hash, trial.relative_throughput or 0) for trial in others}
    # Who was raced comes first: one window says less than many rounds.
    order = sorted(others, key=lambda trial: (trial.config.hash not in result.raced, -speeds[trial.number]))
    return order[:RUNNERS_UP]


def _add(table: Table, role: str, name: str, figures: Figures) -> None:
    table.add_row(
        role,
        Text(shorten(name, NAME_WIDTH)),
        format_bytes(figures.peak_bytes),
        format_rate(figures.samples_per_second),
        format_relative(figures.relative_throughput),
        str(figures.outcome or "not measured"),
    )


def _verdict_lines(result: Result, folder: Path) -> list[RenderableType]:
    lines = [f"verdict: {VERDICTS[result.verdict]}"]
    if result.best is not None:
        lines.append(
            f"limit {format_bytes(result.best.limit_bytes)} on {result.device.name}, batch {result.best.batch}; "
            f"{format_count(result.trials, 'trial')} in {format_seconds(result.wall_seconds)}"
        )
        lines.append(f"race: {result.best.ranking.sentence}" if result.best.ranking is not None else "")
        lines.append(_describe_gradients(result.best.gradients))
    lines += [f"warning: {warning}" for warning in result.warnings]
    return [Text(line) for line in [*filter(None, lines), f"study: {folder}", ""]]


def _describe_gradients(check: GradientCheck | None) -> str:
    if check is None:
        return ""
    equality = "equal bit for bit" if check.worst == 0 else f"equal within {check.worst:.1e}"
    return f"gradients {equality} to those without recompute, over {check.steps} steps"


def _lines_to_paste(result: Result) -> list[str]:
    best = result.best
    if best is None:
        return []
    exports = [f"export {name}={shlex.quote(value)}" for name, value in best.environment.items()]
    if not exports:
        exports = ["# nothing to set: train without recompute"]
    start = f"autorecompute run {shlex.quote(result.study)} -- {shlex.join(result.command)}"
    # The variables alone do nothing to a model that nobody wraps.
    ways = [] if result.wrap else [*(f"  {line}" for line in exports), "or:"]
    lines = ["train with it:", *ways, f"  {start}"]
    if not result.command_gives_batch:
        lines.append(f"and give the script a batch of {best.batch}: while tuning, its DataLoader was told")
    return lines


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        is_number = column in {"#", "peak", "throughput", "relative", "samples/s", "step"}
        # On a narrow terminal the words wrap, the figures never do.
        table.add_column(
            column, justify="right" if is_number else "left", no_wrap=column not in {"config", "why"}, overflow="fold"
        )
    return table
