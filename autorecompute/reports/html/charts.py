"""The page's charts: memory against throughput, memory over a step, predicted against measured, throughput by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.reports.html.svg import COLORS, new_figure, to_element
from autorecompute.reports.picture import draw_timeline
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist

    from autorecompute.figures import CurvePoint
    from autorecompute.memory import Timeline

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
    """What is drawn of memory against throughput.

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
    """Return what is alive during each operation of a step, without recompute above and with the config below."""
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
    """Return what was expected before each trial beside what was measured: ``(expected, measured, title)`` of each.

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
