"""Tables without the blanks that fill each of their lines up to the width of the last column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderHook
from rich.segment import Segment
from rich.table import Table

from autorecompute.reports.fitting import FittingTable

if TYPE_CHECKING:
    from collections.abc import Iterator


class Trim(RenderHook):
    """Has a console print tables, and groups with tables in them, without those blanks."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed instead."""
        return [Trimmed(entry) if isinstance(entry, Table | FittingTable | Group) else entry for entry in renderables]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What is printed, without blanks at the ends of its lines.

    Attributes:
        content: What it is.
    """

    content: ConsoleRenderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Yield its lines."""
        for line in console.render_lines(self.content, options, pad=False):
            yield from _without_end(line)
            yield Segment.line()


def _without_end(line: list[Segment]) -> list[Segment]:
    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        text, style, control = kept[-1]
        kept[-1] = Segment(text.rstrip(" "), style, control)
    return kept
