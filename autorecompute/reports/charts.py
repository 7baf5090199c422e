"""Charts, drawn by matplotlib: the picture of ``plans``, and those that the page has in its own style."""

from __future__ import annotations

import io
import itertools
import math
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import numpy as np

from autorecompute.errors import SetupError, UsageError
from autorecompute.figures import format_relative, place_measured
from autorecompute.files import require_place, shown, write_named
from autorecompute.memory import Phase, undominated
from autorecompute.reports.plans_text import describe_machine
from autorecompute.units import MIB, format_bytes, format_rate, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from autorecompute.figures import CurvePoint
    from autorecompute.measurement import Trial
    from autorecompute.memory import Forecast, Timeline
    from autorecompute.reports.peak_view import PeakView
    from autorecompute.result import Best

FORMATS = (".png", ".svg", ".pdf")

WIDTH_INCHES, HEIGHT_INCHES = 7.0, 4.5  # each part of a picture
COLUMNS = 220  # a timeline has no more points than a screen shows
STRIPES, STRIPE_GAP = 16, 0.4  # at most so many for the layers, and the width of the line between two, in points

PICTURE_COLORS: dict[str, str] = {
    Phase.FORWARD: "#4477aa",
    Phase.LOSS: "#ccbb44",
    Phase.BACKWARD: "#228833",
    Phase.RECOMPUTE: "#ee6677",
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

    What the forward pass made has a stripe for each layer, or for a few in a row where there are many. The colours are
    those of each phase, of ``ink`` for the line at the beginning of the backward pass, and of ``paper``.

    Returns:
        Words about each stripe, by its identifier, which begins with the name; empty where nothing is ever alive.
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
        stripes = draw_timeline(axis, timeline, PICTURE_COLORS, name)
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
    machine = view.none.machine
    line = [(forecast.peak_bytes / MIB, _cost(forecast)) for forecast in view.frontier]
    axes.plot(
        *zip(*line, strict=True), drawstyle="steps-post", color=PICTURE_COLORS[str(Phase.FORWARD)], label="frontier"
    )
    for name, config in view.model.space.presets.items():
        forecast = view.model.forecast(config, view.dims)
        place = forecast.peak_bytes / MIB, _cost(forecast)
        axes.plot(*place, "D", color=PICTURE_COLORS[Phase.BACKWARD], markersize=4.5)
        axes.annotate(name, place, xytext=(5, 3), textcoords="offset points", fontsize=7, color=PICTURE_COLORS["ink"])
    if view.limit_bytes is not None:
        axes.axvline(view.limit_bytes / MIB, color=PICTURE_COLORS[Phase.RECOMPUTE], linestyle="--", label="limit")
    where = f"step, estimated for {describe_machine(machine)}, ms" if machine is not None else ""
    axes.set(title="all configs, predicted", xlabel="peak, MiB", ylabel=where or "recompute, share of a step")
    axes.legend(loc="best")


def _cost(forecast: Forecast) -> float:
    return forecast.recompute_share if forecast.estimate is None else 1000 * forecast.estimate.step_seconds


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

PALETTE = ("ink", "muted", "rule", "fit", "over", "best", "limit", "forward", "loss", "backward", "recompute", "paper")
PAGE_COLORS = {name: f"#0a0b{number:02x}" for number, name in enumerate(PALETTE, start=1)}
"""The colour that matplotlib is given for each variable of the page."""

PAGE_WIDTH_INCHES = 5.4
ROOM_ABOVE = 1.1  # the highest marker is whole below the edge of a chart that ends at this times its value

_VARIABLES = {color: f"var(--{name})" for name, color in PAGE_COLORS.items()}


def _new_figure(height_inches: float) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(PAGE_WIDTH_INCHES, height_inches), layout="constrained")
    figure.patch.set_visible(False)
    return figure


def style() -> dict[str, Any]:
    """Return matplotlib's settings for drawing and saving."""
    ink, muted, rule = PAGE_COLORS["ink"], PAGE_COLORS["muted"], PAGE_COLORS["rule"]
    return {
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "text.color": ink,
        "axes.labelcolor": muted,
        "axes.edgecolor": rule,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "xtick.color": muted,
        "ytick.color": muted,
        "grid.color": rule,
        "grid.linewidth": 0.6,
        "axes.grid": True,
        "axes.axisbelow": True,
        "legend.frameon": False,
        "legend.labelcolor": ink,
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "autorecompute",
    }


def _to_element(figure: Figure, name: str, label: str, titles: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the figure as an element of a page, with words about it for those who do not see it.

    Its identifiers begin with the name and are its own on the page. Titles are words for each mark, shown where the
    pointer rests on it, by the group that they are drawn in.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    ET.register_namespace("", SVG)
    root = ET.fromstring(file.getvalue())  # noqa: S314  (matplotlib's own output, in which no user has a word)
    for group, words in (titles or {}).items():
        (found,) = (element for element in root.iter(f"{{{SVG}}}g") if element.get("id") == group)
        # Every mark is within the axes, so that each has its words.
        for mark, title in zip(list(found.iter(f"{{{SVG}}}use")), words, strict=True):
            ET.SubElement(mark, f"{{{SVG}}}title").text = title
    for parent in root.iter():
        for child in [child for child in parent if child.tag in {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}]:
            parent.remove(child)
        _adapt(parent, name)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": label}
    del root.attrib["width"], root.attrib["height"]
    return ET.tostring(root, encoding="unicode")


def _adapt(element: ET.Element, name: str) -> None:
    """Give an element the page's own style, and identifiers of its figure's own: those of two figures are alike."""
    for declaration in filter(None, map(str.strip, element.attrib.pop("style", "").split(";"))):
        attribute, _, value = (part.strip() for part in declaration.partition(":"))
        if attribute == "font":
            # ``9px 'DejaVu Sans'``: the family is the page's.
            element.set("font-size", next(word for word in value.split() if word.endswith("px")).removesuffix("px"))
        else:
            element.set(attribute, _VARIABLES.get(value.lower(), value))
    if (own := element.get("id")) is not None:
        element.set("id", f"{name}-{own}")
    if (target := element.attrib.pop(f"{{{XLINK}}}href", None)) is not None:
        element.set("href", f"#{name}-{target.removeprefix('#')}")
    if (clip := element.get("clip-path")) is not None:
        element.set("clip-path", clip.replace("url(#", f"url(#{name}-"))


def draw_plane(trials: Sequence[Trial], best: Best | None, limit_bytes: int) -> tuple[str, bool]:
    """Draw peak against throughput of what was measured: up and to the left is better.

    Return the drawing, empty where nothing was measured, and whether the config to train with is in it.
    """
    measured, is_relative = place_measured(trials)
    if not measured:
        return "", False
    places = [((peak / MIB, speed), trial) for peak, speed, trial in measured]
    figure = _new_figure(3.7)
    axes = figure.subplots()
    axes.axvline(limit_bytes / MIB, color=PAGE_COLORS["limit"], linestyle="--", linewidth=1.2, label="limit")
    titles = {}
    for group, name, face, edge in (("fits", "fits", "fit", "fit"), ("over", "over the limit", "paper", "over")):
        some = [(place, trial) for place, trial in places if trial.fits == (group == "fits")]
        if some:
            titles[group] = [_title(trial) for _, trial in some]
            axes.plot(
                *zip(*(place for place, _ in some), strict=True), "o", markersize=5.5, gid=group,
                label=name, markerfacecolor=PAGE_COLORS[face], markeredgecolor=PAGE_COLORS[edge],
            )  # fmt: skip
    memory, speeds = np.array([place for place, _ in places]).T
    line = undominated(memory, -speeds)
    axes.plot(
        memory[line],
        speeds[line],
        color=PAGE_COLORS["fit"],
        linewidth=1,
        drawstyle="steps-post",
        label="measured frontier",
    )
    speed = None if best is None else best.relative_throughput if is_relative else best.samples_per_second
    if best is not None and speed is not None:
        titles["best"] = [f"{best.description}, as confirmed"]
        axes.plot(
            best.peak_bytes / MIB, speed, "*", markersize=15, gid="best", label="to train with",
            markerfacecolor=PAGE_COLORS["best"], markeredgecolor=PAGE_COLORS["paper"],
        )  # fmt: skip
    axes.margins(0.06, 0.08)
    axes.set(xlabel="peak, MiB", ylabel="throughput, none = 1" if is_relative else "samples/s")
    figure.legend(loc="outside upper left", ncols=3, handlelength=1.6, columnspacing=1.2)
    drawing = _to_element(figure, "plane", "Peak memory against throughput of every measured config", titles)
    return drawing, "best" in titles


def _title(trial: Trial) -> str:
    peak, speed = format_bytes(trial.measurement.peak_bytes), format_rate(trial.samples_per_second)
    return f"{trial.number}: {trial.description}\n{peak}, {speed}, {format_relative(trial.relative_throughput)}"


def draw_timelines(before: Timeline, after: Timeline) -> str:
    """Draw the live memory during each operation of a step, without recompute above and with the config below."""
    figure = _new_figure(4.6)
    above, below = figure.subplots(2, 1, sharey=True)
    titles: dict[str, Sequence[str]] = {}
    for axes, name, what, timeline in (
        (above, "before", "no recompute", before),
        (below, "after", "the config", after),
    ):
        titles |= {stripe: [told] for stripe, told in draw_timeline(axes, timeline, PAGE_COLORS, name).items()}
        axes.set_title(f"{name}: {what}, {format_bytes(timeline.peak_bytes)} alive at the peak", loc="left")
        axes.set_ylabel("alive, MiB")
        axes.margins(x=0, y=0.05)
        axes.set_xticks([])
    has_layers = any(timeline.live_by_layer().keys() - {""} for timeline in (before, after))
    below.set_xlabel(f"along the step (dotted: backward begins{'; stripes are layers' * has_layers})")
    handles: dict[str, Artist] = {}
    for axes in (above, below):
        found, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, found, strict=True))
    if handles:  # else the legend is an empty box
        figure.legend(list(handles.values()), list(handles), loc="outside upper left", ncols=4, columnspacing=1.2)
    return _to_element(figure, "timelines", "Memory alive during each operation of a step, before and after", titles)


def draw_curve(curve: Sequence[CurvePoint], chosen: int | None) -> str:
    """Draw samples/s by batch, without recompute and with it."""
    figure = _new_figure(3.0)
    axes = figure.subplots()
    fitting = [(p.batch, p.without.samples_per_second) for p in curve if p.fits_without]
    beyond = [(p.batch, p.without.samples_per_second) for p in curve if not p.fits_without]
    recomputed = [(p.batch, p.recomputed.figures.samples_per_second) for p in curve if p.recomputed is not None]
    drawn: list[tuple[int, float]] = []
    for name, form, color, face, found in (
        ("without recompute", "o-", "over", "over", fitting),
        ("without, over the limit", "o", "over", "paper", beyond),
        ("with recompute", "o-", "fit", "fit", recomputed),
    ):
        known = [(batch, speed) for batch, speed in found if speed is not None]
        drawn += known
        if known:
            axes.plot(
                *zip(*known, strict=True), form, markersize=5, linewidth=1.4, label=name,
                color=PAGE_COLORS[color], markerfacecolor=PAGE_COLORS[face],
            )  # fmt: skip
    if chosen is not None:
        axes.axvline(chosen, color=PAGE_COLORS["best"], linewidth=1, linestyle="--", label="chosen batch")
    axes.margins(0.05, 0.1)
    axes.set_ylim(bottom=0, top=ROOM_ABOVE * max((speed for _, speed in drawn), default=1.0))
    axes.set(xlabel="batch, samples", ylabel="samples/s")
    figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
    return _to_element(figure, "curve", "Samples a second by batch, without recompute and with it")
