"""Timelines as a picture: what is alive during each operation, by what it was made in, with the peak marked."""

from __future__ import annotations

import io
import itertools
import math
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError, UsageError
from autorecompute.files import require_place, shown, write_named
from autorecompute.memory import Phase
from autorecompute.reports.peak import describe_machine
from autorecompute.units import MIB, format_bytes, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from matplotlib.axes import Axes

    from autorecompute.memory import Forecast, PeakView, Timeline

FORMATS = (".png", ".svg", ".pdf")

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 4.5
COLUMNS = 220
"""A timeline has no more points than a screen shows."""

STRIPES, STRIPE_GAP = 16, 0.4
"""At most so many for the layers, and the width of the line between two, in points."""

COLORS = {
    str(Phase.FORWARD): "#4477aa",
    str(Phase.LOSS): "#ccbb44",
    str(Phase.BACKWARD): "#228833",
    str(Phase.RECOMPUTE): "#ee6677",
    "ink": "0.4",
    "paper": "white",
}
"""Told apart by readers with any colour vision (Paul Tol's bright scheme)."""


def require_picture_file(file: Path) -> None:
    """Check that a picture can be written there, before anything is done for it.

    Raises:
        UsageError: the suffix is no format of a picture, or there can be no such file.
    """
    if file.suffix not in FORMATS:
        endings = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise UsageError(f"{shown(file)} is no picture: its name must end with {endings}.")
    require_place(file, force=True)


def save_picture(view: PeakView, file: Path) -> None:
    """Draw both timelines side by side on one scale, and the frontier beside them where it is known.

    The suffix of the file tells the format.

    Raises:
        SetupError: matplotlib is not installed, or the disk is full.
        UsageError: the file cannot be written.
    """
    try:
        picture = _draw(view, file.suffix)
    except ModuleNotFoundError as error:
        raise SetupError(f'A picture needs {error.name}. Install it: pip install "autorecompute[report]".') from error
    write_named(file, picture, force=True)


def draw_timeline(axes: Axes, timeline: Timeline, colors: Mapping[str, str], name: str) -> dict[str, str]:
    """Draw what is alive during each operation, in MiB, by the phase and the layers that it was made in.

    What the forward pass made has a stripe for each layer, or for a few in a row where there are many.

    Args:
        axes: The axes of a figure.
        timeline: The memory over a step.
        colors: The colour of each phase, ``ink`` for the line at the beginning of the backward pass, and ``paper``.
        name: Beginning of the identifiers of the stripes.

    Returns:
        Words about each stripe, by its identifier; nothing, and nothing is drawn, where nothing is ever alive.
    """
    stripes = [stripe for stripe in _stripes(timeline) if any(stripe[-1])]
    if not stripes:  # matplotlib takes no stack of none
        return {}
    live, count = timeline.live_bytes, len(timeline.live_bytes)
    columns = min(count, COLUMNS)
    edges = [column * count // columns for column in range(columns + 1)]
    # Of each stretch the moment of its highest memory is drawn: thinned out otherwise, a peak may be lost.
    places = [max(range(start, end), key=live.__getitem__) for start, end in itertools.pairwise(edges)]
    drawn = axes.stackplot(
        places,
        [[live_bytes[place] / MIB for place in places] for _, _, live_bytes in stripes],
        colors=[colors[phase] for phase, _, _ in stripes],
        edgecolor=colors["paper"],
        linewidth=STRIPE_GAP,
    )
    told, labelled = {}, set()
    for number, ((phase, title, live_bytes), area) in enumerate(zip(stripes, drawn, strict=True)):
        area.set_gid(f"{name}-{number}")
        area.set_label(str(phase) if phase not in labelled else "_")
        labelled.add(phase)
        told[f"{name}-{number}"] = f"{title}: {format_bytes(max(live_bytes))} at most"
    axes.axvline(timeline.profile.backward, color=colors["ink"], linestyle=":", linewidth=1)
    return told


def _stripes(timeline: Timeline) -> Iterator[tuple[Phase, str, tuple[int, ...]]]:
    """Yield the parts of a timeline that are drawn in one piece, from below: phase, title and bytes alive."""
    layers = timeline.live_by_layer()
    outside = layers.pop("", ())
    if outside:
        where = ", outside of the layers" if layers else ""
        yield Phase.FORWARD, f"made in the forward pass{where}", outside
    in_one = math.ceil(len(layers) / STRIPES)
    for first in range(0, len(layers), max(in_one, 1)):
        names = list(layers)[first : first + in_one]
        title = f"made in the forward pass of {printable(' to '.join(dict.fromkeys([names[0], names[-1]])), '')}"
        yield Phase.FORWARD, title, tuple(map(sum, zip(*(layers[name] for name in names), strict=True)))
    for phase, live_bytes in timeline.live_by_phase().items():
        if phase is not Phase.FORWARD:
            yield phase, f"made in {phase}", live_bytes


def _draw(view: PeakView, suffix: str) -> bytes:
    from matplotlib.figure import Figure

    timelines, count = view.timelines(), len(view.timelines()) + bool(view.frontier)
    figure = Figure(figsize=(WIDTH_INCHES * count, HEIGHT_INCHES), layout="constrained")
    axes = figure.subplots(1, count, squeeze=False)[0]
    for axis, (name, timeline) in zip(axes, timelines.items(), strict=False):
        axis.sharey(axes[0])
        stripes = draw_timeline(axis, timeline, COLORS, name)
        axis.annotate(
            f"{format_bytes(timeline.peak_bytes)}, {timeline.profile.operations[timeline.peak].operator}",
            (timeline.peak, timeline.peak_bytes / MIB),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
        )
        axis.set(title=name, xlabel="operation of the step (dotted: backward begins)")
        axis.margins(x=0, y=0.12)
        if stripes:  # matplotlib warns of a legend without entries
            axis.legend(loc="upper left", title="made in")
    axes[0].set_ylabel("alive, MiB")
    if view.frontier:
        _draw_frontier(axes[-1], view)
    drawing = io.BytesIO()
    figure.savefig(drawing, format=suffix.removeprefix("."))
    return drawing.getvalue()


def _draw_frontier(axes: Axes, view: PeakView) -> None:
    """Draw peak against a step's estimated time, or where there is none against recompute, and the limit."""
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
