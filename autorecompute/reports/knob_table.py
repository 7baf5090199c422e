"""What other settings did to the winner, as a table of the last screen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from autorecompute.figures import format_interval, format_relative
from autorecompute.reports.fitting import FittingTable
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from autorecompute.figures import KnobFigures

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
    """Return what a knob that was tried did, as people read it, under ``COLUMNS``."""
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
