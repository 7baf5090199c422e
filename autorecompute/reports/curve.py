"""The curve of throughput against batch, as a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.reports.fitting import FittingTable
from autorecompute.reports.words import shorten
from autorecompute.units import format_bytes, format_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.figures import CurvePoint, Figures, Recomputed

NAME_WIDTH = 40
FIGURES = ("batch", "without", "peak", "with", "peak")


def curve_table(curve: Sequence[CurvePoint], chosen: int | None) -> FittingTable:
    """Samples/s and peak of every batch without recompute and with it; the chosen batch has a star."""
    table = FittingTable(columns=(*FIGURES, "config", "study"), spared=frozenset({"study"}))
    for point in curve:
        *figures, config, study = curve_cells(point, chosen)
        table.add_row(*figures, shorten(config, NAME_WIDTH), study)
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
