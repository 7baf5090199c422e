"""Matplotlib's figures as part of a page: drawn once, in the colours of the page, be it light or dark.

The page forbids styles that are written at an element, so they become attributes; a colour becomes the page's variable
of that name. Users' words are never drawn, they come as titles of marks: matplotlib reads a dollar sign as mathematics.
"""

from __future__ import annotations

import io
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

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
    """Return what matplotlib is told while it draws and saves."""
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
