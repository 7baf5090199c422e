"""Charts of the page, drawn by matplotlib and put into it in the page's own style."""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

from autorecompute.figures import format_relative
from autorecompute.reports.picture import draw_timeline
from autorecompute.units import MIB, format_bytes, format_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

    from autorecompute.figures import CurvePoint
    from autorecompute.measurement import Trial
    from autorecompute.memory import Timeline
    from autorecompute.result import Best


SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
HREF = f"{{{XLINK}}}href"

PALETTE = ("ink", "muted", "rule", "fit", "over", "best", "limit", "forward", "loss", "backward", "recompute", "paper")
COLORS = {name: f"#0a0b{number:02x}" for number, name in enumerate(PALETTE, start=1)}
"""The colour that matplotlib is given for each variable of the page."""

WIDTH_INCHES = 5.4
ROOM_ABOVE = 1.1
"""The highest marker is whole below the edge of a chart that ends at this times its value."""

_VARIABLES = {color: f"var(--{name})" for name, color in COLORS.items()}
_DROPPED = {f"{{{SVG}}}metadata", f"{{{SVG}}}style"}


def new_figure(height_inches: float) -> Figure:
    """Return a figure without paper of its own."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
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
        figure: The drawing.
        name: The beginning of its identifiers, which are its own on the page.
        label: Words about it for those who do not see it.
        titles: Words for each mark, shown where the pointer rests on it, by the group that they are drawn in.
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


def draw_plane(trials: Sequence[Trial], best: Best | None, limit_bytes: int) -> tuple[str, bool]:
    """Draw peak against throughput of what was measured: up and to the left is better.

    Return the drawing, empty where nothing was measured, and whether the config to train with is in it.
    """
    measured = [t for t in trials if t.measurement.peak_bytes is not None and t.measurement.samples_per_second]
    if not measured:
        return "", False
    is_relative = all(trial.relative_throughput for trial in measured)
    places = {trial.number: _place(trial, is_relative=is_relative) for trial in measured}
    figure = new_figure(3.7)
    axes = figure.subplots()
    axes.axvline(limit_bytes / MIB, color=COLORS["limit"], linestyle="--", linewidth=1.2, label="limit")
    titles = {}
    for group, name, face, edge in (("fits", "fits", "fit", "fit"), ("over", "over the limit", "paper", "over")):
        some = [trial for trial in measured if trial.fits == (group == "fits")]
        if some:
            titles[group] = [_title(trial) for trial in some]
            axes.plot(
                *zip(*(places[trial.number] for trial in some), strict=True), "o", markersize=5.5, gid=group,
                label=name, markerfacecolor=COLORS[face], markeredgecolor=COLORS[edge],
            )  # fmt: skip
    line = undominated(list(places.values()))
    axes.plot(
        *zip(*line, strict=True), color=COLORS["fit"], linewidth=1, drawstyle="steps-post", label="measured frontier"
    )
    speed = None if best is None else best.relative_throughput if is_relative else best.samples_per_second
    if best is not None and speed is not None:
        titles["best"] = [f"{best.description}, as confirmed"]
        axes.plot(
            best.peak_bytes / MIB, speed, "*", markersize=15, gid="best", label="to train with",
            markerfacecolor=COLORS["best"], markeredgecolor=COLORS["paper"],
        )  # fmt: skip
    axes.margins(0.06, 0.08)
    axes.set(xlabel="peak, MiB", ylabel="throughput, none = 1" if is_relative else "samples/s")
    figure.legend(loc="outside upper left", ncols=3, handlelength=1.6, columnspacing=1.2)
    drawing = to_element(figure, "plane", "Peak memory against throughput of every measured config", titles)
    return drawing, "best" in titles


def _place(trial: Trial, *, is_relative: bool) -> tuple[float, float]:
    speed = trial.relative_throughput if is_relative else trial.measurement.samples_per_second
    return (trial.measurement.peak_bytes or 0) / MIB, speed or 0.0


def _title(trial: Trial) -> str:
    measured = trial.measurement
    figures = (
        format_bytes(measured.peak_bytes),
        format_rate(measured.samples_per_second),
        format_relative(trial.relative_throughput),
    )
    return f"{trial.number}: {trial.description}\n{', '.join(figures)}"


def undominated(places: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the pairs of memory and throughput that no other beats in both, the lowest memory first."""
    found: list[tuple[float, float]] = []
    for memory, speed in sorted(places, key=lambda place: (place[0], -place[1])):
        if not found or speed > found[-1][1]:
            found.append((memory, speed))
    return found


def draw_timelines(before: Timeline, after: Timeline) -> str:
    """Draw the live memory during each operation of a step, without recompute above and with the config below."""
    figure = new_figure(4.6)
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


def draw_curve(curve: Sequence[CurvePoint], chosen: int | None) -> str:
    """Draw samples/s by batch, without recompute and with it."""
    figure = new_figure(3.0)
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
