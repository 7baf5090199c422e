"""Timelines as a picture: what is alive during each operation, by what it was made in, with the peak marked."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError, UsageError
from autorecompute.paths import require_place, shown, write_named
from autorecompute.reports.interactive import COLORS, make_page
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autorecompute.memory import Timeline

PAGE = ".html"
FORMATS = (".png", ".svg", ".pdf", PAGE)

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 4.5


def require_picture_file(file: Path) -> None:
    """Checks that a picture can be written there, before anything is done for it.

    Raises:
        UsageError: the suffix is no format of a picture, or there can be no such file.
    """
    if file.suffix not in FORMATS:
        endings = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UsageError(f"{shown(file)} is no picture: its name must end with {endings}.")
    require_place(file, force=True)


def save_picture(timelines: Mapping[str, Timeline], file: Path) -> None:
    """Draws the timelines side by side on one scale.

    Args:
        timelines: What to draw, by name.
        file: Where to; its suffix tells the format. An HTML page can be looked into.

    Raises:
        SetupError: matplotlib or plotly is not installed, or the disk is full.
        UsageError: the file cannot be written.
    """
    try:
        picture = make_page(timelines).encode() if file.suffix == PAGE else _draw(timelines, file.suffix)
    except ModuleNotFoundError as error:
        raise SetupError(f'A picture needs {error.name}. Install it: pip install "autorecompute[report]".') from error
    write_named(file, picture, force=True)


def _draw(timelines: Mapping[str, Timeline], suffix: str) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES * len(timelines), HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots(1, len(timelines), sharey=True, squeeze=False)[0]
    for axis, (name, timeline) in zip(axes, timelines.items(), strict=True):
        live = {phase: held for phase, held in timeline.live_by_phase().items() if any(held)}
        mebibytes = [[size / MIB for size in held] for held in live.values()]
        axis.stackplot(range(len(timeline.live_bytes)), mebibytes, labels=list(live), colors=[COLORS[p] for p in live])
        axis.axvline(timeline.profile.backward, color="0.4", linestyle=":", linewidth=1)
        axis.annotate(
            f"{format_bytes(timeline.peak_bytes)}, {timeline.profile.operations[timeline.peak].operator}",
            (timeline.peak, timeline.peak_bytes / MIB),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
        )
        axis.set(title=name, xlabel="operation of the step (dotted: backward begins)")
        axis.margins(x=0, y=0.12)
        axis.legend(loc="upper left", title="made in")
    axes[0].set_ylabel("alive, MiB")
    drawing = io.BytesIO()
    figure.savefig(drawing, format=suffix.removeprefix("."))
    return drawing.getvalue()
