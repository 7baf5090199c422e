"""Consoles that print what a study holds: wherever it comes from, it cannot steer the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, ConsoleRenderable, RenderHook
from rich.segment import Segment
from rich.table import Table

from autorecompute.reports.trimmed import Trim
from autorecompute.units import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

FILE_WIDTH = 250
WORDS = frozenset({"plan", "config", "answer"})
"""Columns of a table that hold words."""


def make_console() -> Console:
    """Return standard output, wide where it is no terminal: a file has no edge at which to wrap."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=FILE_WIDTH)
    console.push_render_hook(Trim())
    return guarded(console)


def guarded(console: Console) -> Console:
    """Return the console, which from now on prints control characters as they are written in Python."""
    console.push_render_hook(_Guard())
    return console


class Guarded:
    """Something to print, with its control characters written out.

    Args:
        inner: What to print.
    """

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield what rich itself says to the terminal, colours for instance, passes."""
        for segment in console.render(self._inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


class _Guard(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [Guarded(renderable) for renderable in renderables]


def make_table(*headings: str) -> Table:
    """Return a table without lines: words to the left, figures to the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in WORDS else "right")
    return table
