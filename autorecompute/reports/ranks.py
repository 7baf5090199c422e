"""What the peak of one rank is made of, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from autorecompute.reports.console import make_console, make_table
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from autorecompute.memory import PeakView


def print_rank(view: PeakView, console: Console | None = None) -> None:
    """Print what the peak of each preset is made of on one rank; nothing where one rank was not asked for."""
    forecasts = {name: view.model.forecast(config, view.dims) for name, config in view.model.space.presets.items()}
    peaks = {name: forecast.rank for name, forecast in forecasts.items() if forecast.rank is not None}
    if not peaks:
        return
    console = console or make_console()
    table = make_table("config", "peak", "parameters", "gradients", "state", "gathered", "activations")
    for name, peak in peaks.items():
        sizes = (
            peak.peak_bytes,
            peak.parameter_bytes,
            peak.gradient_bytes,
            peak.state_bytes,
            peak.gathered_bytes,
            peak.activation_bytes,
        )
        table.add_row(Text(name), *map(format_bytes, sizes))
    ranks = next(iter(peaks.values())).ranks
    console.print(Text(f"\nThe peak of one of {ranks} ranks, by what it is made of; no other rank was there"))
    console.print(Text("gathered: parameters gathered from all ranks, and buffers in which gradients are reduced"))
    console.print(table)
