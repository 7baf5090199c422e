"""Charts of the page, drawn by matplotlib and put into it in the page's own style."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autorecompute.reports.picture import draw_timeline
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from autorecompute.figures import CurvePoint
    from autorecompute.memory import Timeline


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"

PALETTE = ("ink", "muted", "rule", "fit", "over", "best", "limit", "forward", "loss", "backward", "recompute", "paper")
COLORS = {name: f"#0a0b{number:02x}" for number, name in enumerate(PALETTE, start=1)}
"""The colour that matplotlib is given for each variable of the page."""

_VARIABLES = {color: f"var(--{name})" for name, color in COLORS.items()}
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return a figure whose text, lines and paper have the page's colours."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    figure.patch.set_visible(False)
    return figure


def style() -> dict[str, Any]:
    """Return matplotlib's settings for drawing and saving."""
    ink, muted, rule = COLORS["ink"], COLORS["muted"], COLORS["rule"]
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


def to_element(figure: Figure, name: str, label: str, titles: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the figure as an element of a page.

    Args:
        figure: What was drawn.
        name: Tells its identifiers from those of the page's other figures.
        label: What it shows, for those who do not see it.
        titles: What is told where the pointer rests on a mark: the marks' words, by the group that they are drawn in.
    """
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    ET.register_namespace("", SVG)
    root = ET.fromstring(file.getvalue())  # noqa: S314  (matplotlib's own output, in which no user has a word)
    for group, words in (titles or {}).items():
        _give_titles(root, group, words)
    for parent in root.iter():
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
        _restyle(parent)
        _rename(parent, name)
    root.attrib |= {"class": "chart", "role": "img", "aria-label": label}
    del root.attrib["width"], root.attrib["height"]
    return ET.tostring(root, encoding="unicode")


def _give_titles(root: ET.Element, group: str, words: Sequence[str]) -> None:
    (found,) = (element for element in root.iter(f"{{{SVG}}}g") if element.get("id") == group)
    marks = list(found.iter(f"{{{SVG}}}use"))
    assert len(marks) == len(words), "every mark is within the axes"
    for mark, title in zip(marks, words, strict=True):
        ET.SubElement(mark, f"{{{SVG}}}title").text = title


def _restyle(element: ET.Element) -> None:
    for declaration in filter(None, map(str.strip, element.attrib.pop("style", "").split(";"))):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":
            # ``9px 'DejaVu Sans'``: the family is the page's.
            element.set("font-size", next(word for word in value.split() if word.endswith("px")).removesuffix("px"))
        else:
            element.set(name, _VARIABLES.get(value.lower(), value))


def _rename(element: ET.Element, name: str) -> None:
    """Make identifiers the figure's own: those of two figures are alike, and a page has each once."""
    if (own := element.get("id")) is not None:
        element.set("id", f"{name}-{own}")
    if (target := element.attrib.pop(HREF, None)) is not None:
        element.set("href", f"#{name}-{target.removeprefix('#')}")
    if (clip := element.get("clip-path")) is not None:
        element.set("clip-path", clip.replace("url(#", f"url(#{name}-"))


WIDTH_INCHES = 5.4

ROOM_ABOVE = 1.1
"""The highest marker is whole below the edge of a chart that ends at this times its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A config in the plane of memory and throughput.

    Attributes:
        peak_bytes: Its peak.
        throughput: Its throughput, in the measure of the chart.
        title: What is told of it.
        fits: Whether it holds the limit.
    """

    peak_bytes: int
    throughput: float
    title: str
    fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """Plane of memory and throughput.

    Attributes:
        points: What was measured.
        best: The config to train with; ``None`` where there is none.
        limit_bytes: The memory limit.
        measure: What throughput is measured in.
    """

    points: Sequence[ChartPoint]
    best: ChartPoint | None
    limit_bytes: int
    measure: str


def draw_plane(plane: Plane) -> str:
    """Memory against throughput: up and to the left is better."""
    figure = new_figure(WIDTH_INCHES, 3.7)
    axes = figure.subplots()
    axes.axvline(plane.limit_bytes / MIB, color=COLORS["limit"], linestyle="--", linewidth=1.2, label="limit")
    titles = {}
    for group, name, face, edge in (("fits", "fits", "fit", "fit"), ("over", "over the limit", "paper", "over")):
        points = [point for point in plane.points if point.fits == (group == "fits")]
        if points:
            titles[group] = [point.title for point in points]
            axes.plot(
                *_xy(points), "o", markersize=5.5, gid=group, label=name,
                markerfacecolor=COLORS[face], markeredgecolor=COLORS[edge],
            )  # fmt: skip
    line = undominated(plane.points)
    axes.plot(*_xy(line), color=COLORS["fit"], linewidth=1, drawstyle="steps-post", label="measured frontier")
    if plane.best is not None:
        titles["best"] = [plane.best.title]
        axes.plot(
            *_xy([plane.best]), "*", markersize=15, gid="best", label="to train with",
            markerfacecolor=COLORS["best"], markeredgecolor=COLORS["paper"],
        )  # fmt: skip
    axes.margins(0.06, 0.08)
    axes.set(xlabel="peak, MiB", ylabel=plane.measure)
    figure.legend(loc="outside upper left", ncols=3, handlelength=1.6, columnspacing=1.2)
    return to_element(figure, "plane", "Peak memory against throughput of every measured config", titles)


def draw_timelines(before: Timeline, after: Timeline) -> str:
    """Draw the live memory during each operation of a step, without recompute above and with the config below."""
    figure = new_figure(WIDTH_INCHES, 4.6)
    above, below = figure.subplots(2, 1, sharey=True)
    titles: dict[str, Sequence[str]] = {}
    for axes, name, what, timeline in (
        (above, "before", "no recompute", before),
        (below, "after", "the config", after),
    ):
        titles |= {stripe: [told] for stripe, told in draw_timeline(axes, timeline, COLORS, name).items()}
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
    return to_element(figure, "timelines", "Memory alive during each operation of a step, before and after", titles)


def draw_predictions(peaks: Sequence[tuple[float, float, str]], steps: Sequence[tuple[float, float, str]]) -> str:
    """Draw each trial's prediction beside its measurement: ``(expected, measured, title)`` of each.

    Peaks are in MiB and steps in seconds, which are drawn in ms where all are shorter than one. Where nothing was
    expected of step times there is no plot of them.
    """
    figure = new_figure(WIDTH_INCHES, 2.9)
    left, right = figure.subplots(1, 2)
    titles = {}
    in_seconds = any(max(expected, measured) >= 1 for expected, measured, _ in steps)
    of_steps = ("step, s", 1) if in_seconds else ("step, ms", 1000)
    for axes, group, pairs, (unit, factor) in (
        (left, "peaks", peaks, ("peak, MiB", 1)),
        (right, "steps", steps, of_steps),
    ):
        if not pairs:
            axes.set_visible(False)
            continue
        titles[group] = [title for _, _, title in pairs]
        expected, measured = ([pair[place] * factor for pair in pairs] for place in (0, 1))
        low, high = min(*expected, *measured), max(*expected, *measured)
        axes.plot([low, high], [low, high], color=COLORS["muted"], linestyle=":", linewidth=1.2)
        axes.plot(expected, measured, "o", markersize=4.5, color=COLORS["fit"], gid=group)
        axes.set(xlabel=f"predicted {unit}", ylabel="measured")
        axes.margins(0.08)
    return to_element(figure, "predictions", "Predicted against measured peaks and step times", titles)


def draw_curve(curve: Sequence[CurvePoint], chosen: int | None) -> str:
    """Samples/s by batch, without recompute and with it."""
    figure = new_figure(WIDTH_INCHES, 3.0)
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
                color=COLORS[color], markerfacecolor=COLORS[face],
            )  # fmt: skip
    if chosen is not None:
        axes.axvline(chosen, color=COLORS["best"], linewidth=1, linestyle="--", label="chosen batch")
    axes.margins(0.05, 0.1)
    axes.set_ylim(bottom=0, top=ROOM_ABOVE * max((speed for _, speed in drawn), default=1.0))
    axes.set(xlabel="batch, samples", ylabel="samples/s")
    figure.legend(loc="outside upper left", ncols=2, columnspacing=1.2)
    return to_element(figure, "curve", "Samples a second by batch, without recompute and with it")


def undominated(points: Sequence[ChartPoint]) -> list[ChartPoint]:
    """Return the points that no other beats in both memory and throughput, the lowest peak first."""
    found: list[ChartPoint] = []
    for point in sorted(points, key=lambda point: (point.peak_bytes, -point.throughput)):
        if not found or point.throughput > found[-1].throughput:
            found.append(point)
    return found


def _xy(points: Sequence[ChartPoint]) -> tuple[list[float], list[float]]:
    return [point.peak_bytes / MIB for point in points], [point.throughput for point in points]
