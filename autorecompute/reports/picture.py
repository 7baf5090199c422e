"""Timelines as a picture: what is alive during each operation, by what it was made in, with the peak marked."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError, UsageError
from autorecompute.memory import Phase
from autorecompute.paths import require_place, shown, write_named
from autorecompute.reports.estimates import describe_machine
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from autorecompute.memory import Forecast, PeakView, Timeline

FORMATS = (".png", ".svg", ".pdf")

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 4.5
COLUMNS = 220
"""A timeline has no more points than a screen shows."""

COLORS = {
    str(Phase.FORWARD): "#4477aa",
    str(Phase.LOSS): "#ccbb44",
    str(Phase.BACKWARD): "#228833",
    str(Phase.RECOMPUTE): "#ee6677",
    "ink": "0.4",
}
"""Told apart by readers with any colour vision (Paul Tol's bright scheme)."""


def require_picture_file(file: Path) -> None:
    """Checks that a picture can be written there, before anything is done for it.

    Raises:
        UsageError: the suffix is no format of a picture, or there can be no such file.
    """
    if file.suffix not in FORMATS:
        endings = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UsageError(f"{shown(file)} is no picture: its name must end with {endings}.")
    require_place(file, force=True)


def save_picture(view: PeakView, file: Path) -> None:
    """Draws both timelines side by side on one scale, and the frontier beside them where it is known.

    Args:
        view: What to draw.
        file: Where to; its suffix tells the format.

    Raises:
        SetupError: matplotlib is not installed, or the disk is full.
        UsageError: the file cannot be written.
    """
    try:
        picture = _draw(view, file.suffix)
    except ModuleNotFoundError as error:
        raise SetupError(f'A picture needs {error.name}. Install it: pip install "autorecompute[report]".') from error
    write_named(file, picture, force=True)


def draw_timeline(axes: Axes, timeline: Timeline, colors: Mapping[str, str]) -> None:
    """Draws what is alive during each operation, in MiB, by the phase that it was made in.

    Args:
        axes: Where to.
        timeline: What to draw.
        colors: The colour of each phase, and ``ink`` for the line at the beginning of the backward pass.
    """
    live, count = timeline.live_bytes, len(timeline.live_bytes)
    columns = min(count, COLUMNS)
    edges = [column * count // columns for column in range(columns + 1)]
    # Of each stretch the moment of its highest memory is drawn: thinned out otherwise, a peak may be lost.
    places = [max(range(start, end), key=live.__getitem__) for start, end in itertools.pairwise(edges)]
    held = {str(phase): values for phase, values in timeline.live_by_phase().items() if any(values)}
    axes.stackplot(
        places,
        [[values[place] / MIB for place in places] for values in held.values()],
        labels=list(held),
        colors=[colors[phase] for phase in held],
        linewidth=0,
    )
    axes.axvline(timeline.profile.backward, color=colors["ink"], linestyle=":", linewidth=1)


def _draw(view: PeakView, suffix: str) -> bytes:
    from matplotlib.figure import Figure

    timelines, count = view.timelines(), len(view.timelines()) + bool(view.frontier)
    figure = Figure(figsize=(WIDTH_INCHES * count, HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (name, timeline) in zip(axes, timelines.items(), strict=False):
        axis.sharey(axes[0])
        draw_timeline(axis, timeline, COLORS)
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
    if view.frontier:
        _draw_frontier(axes[-1], view)
    drawing = io.BytesIO()
    figure.savefig(drawing, format=suffix.removeprefix("."))
    return drawing.getvalue()


def _draw_frontier(axes: Axes, view: PeakView) -> None:
    """Draws peak against a step's estimated time, or where there is none against recompute, and the limit."""
    estimate = view.none.estimate
    line = [(forecast.peak_bytes / MIB, _cost(forecast)) for forecast in view.frontier]
    axes.plot(*zip(*line, strict=True), drawstyle="steps-post", color=COLORS[str(Phase.FORWARD)], label="frontier")
    for name, config in view.model.space.presets.items():
        forecast = view.model.forecast(config, view.dims)
        place = forecast.peak_bytes / MIB, _cost(forecast)
        axes.plot(*place, "D", color=COLORS[str(Phase.BACKWARD)], markersize=4.5)
        axes.annotate(name, place, xytext=(5, 3), textcoords="offset points", fontsize=7, color=COLORS["ink"])
    if view.limit_bytes is not None:
        axes.axvline(view.limit_bytes / MIB, color=COLORS[str(Phase.RECOMPUTE)], linestyle="--", label="limit")
    where = f"step, estimated for {describe_machine(estimate.machine)}, ms" if estimate is not None else ""
    axes.set(title="all configs, predicted", xlabel="peak, MiB", ylabel=where or "recompute, share of a step")
    axes.legend(loc="best")


def _cost(forecast: Forecast) -> float:
    return forecast.recompute_share if forecast.estimate is None else 1000 * forecast.estimate.seconds
