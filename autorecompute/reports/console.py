"""Texts that fit their place, and the console that prints them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, Group, RenderHook
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autorecompute.result import SearchEnd
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType, RenderResult

    from autorecompute.result import Result


EARLY_ENDS = {
    SearchEnd.TIME: "the time is over",
    SearchEnd.INTERRUPTED: "interrupted",
    SearchEnd.TRAINING: "the training ended, or had no steps left for trials",
}


def describe_early_end(result: Result) -> str:
    """Return that there is more to be found, and how; empty where there is not."""
    if not result.search_end.is_early or result.best is None:
        return ""
    why = EARLY_ENDS[result.search_end]
    best = (
        "the best that was confirmed"
        if result.best.confirmed
        else "the fastest so far, and no process has confirmed it"
    )
    return f"{why}: this is {best}; rerun the command to continue"


def shorten(text: str, width: int) -> str:
    """Return the text, cut in its middle to the width: a config's name tells most at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


NAME = "config"
LEFT_ALIGNED = frozenset({"", NAME, "why", "outcome", "study", "knob"})
"""Columns of words, which stand to the left. All others hold figures."""
WRAPPED = frozenset({NAME, "why", "study"})
"""Columns that may take several lines. The cells of all others stay whole."""
UNNAMED = frozenset({"", "#", "outcome"})
"""Columns whose cells need no heading beside them in a list."""
LEAST_WIDTH = 20
"""So wide is a column at least whose cells are broken into lines."""
GAP = 2
UNKNOWN = "-"
HARD_SPACE = "\N{NO-BREAK SPACE}"
INDENT = "  "


@dataclass(slots=True, kw_only=True)
class FittingTable:
    """Rows under headings, without lines between them.

    Attributes:
        columns: The headings: first what tells a row from others.
        spared: Headings of the columns that a narrow terminal does without.
        rows: A cell for each column of each row.
    """

    columns: tuple[str, ...]
    spared: frozenset[str] = frozenset()
    rows: list[tuple[Text, ...]] = field(default_factory=list)

    def add_row(self, *cells: str | Text) -> None:
        """Add a row; nothing in it is read as markup."""
        self.rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        """Yield the widest form that there is room for."""
        every = range(len(self.columns))
        fewer = [place for place in every if self.columns[place] not in self.spared]
        for places in (every, fewer):
            widths = self._widths(places, options.max_width)
            if sum(widths) + GAP * (len(widths) - 1) <= options.max_width:
                yield self._table(places, widths)
                return
        for row in self.rows:
            yield from self._entry(row, options.max_width)

    def _widths(self, places: Sequence[int], most: int) -> list[int]:
        """Return the width of each column: what it needs, and of the rest as much as it has a use for."""
        widths = [self._least_width(place) for place in places]
        rest = most - sum(widths) - GAP * (len(widths) - 1)
        for index, place in enumerate(places):
            more = max(min(rest, self._whole_width(place) - widths[index]), 0)
            widths[index] += more
            rest -= more
        return widths

    def _least_width(self, place: int) -> int:
        whole = self._whole_width(place)
        if self.columns[place] not in WRAPPED:
            return whole
        # A name is broken between its words, and never inside of one.
        return max(min(whole, LEAST_WIDTH), *(cell_len(word) for text in self._texts(place) for word in text.split()))

    def _whole_width(self, place: int) -> int:
        return max(map(cell_len, self._texts(place)))

    def _texts(self, place: int) -> list[str]:
        return [self.columns[place], *(row[place].plain for row in self.rows)]

    def _table(self, places: Sequence[int], widths: Sequence[int]) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for place, width in zip(places, widths, strict=True):
            column = self.columns[place]
            table.add_column(
                column, justify="left" if column in LEFT_ALIGNED else "right", width=width, overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(row[place] for place in places))
        return table

    def _entry(self, row: tuple[Text, ...], width: int) -> Iterator[Text]:
        """Yield a row of the list.

        Its name, and on lines of their own its figures, each with its heading and unbroken.
        """
        first, *others = zip(self.columns, row, strict=True)
        name = [cell.plain for column, cell in others if column == NAME and cell.plain]
        figures = [
            _headed(column, cell) for column, cell in others if column != NAME and cell.plain not in {"", UNKNOWN}
        ]
        yield Text(": ".join([_headed(*first), *name]), style=first[1].style)
        unbroken = ", ".join(figure.replace(" ", HARD_SPACE) for figure in figures)
        for line in textwrap.wrap(unbroken, width - len(INDENT), break_on_hyphens=False):
            yield Text(f"{INDENT}{line.replace(HARD_SPACE, ' ')}")


def _headed(column: str, cell: Text) -> str:
    return cell.plain if column in UNNAMED else f"{column} {cell.plain}"


class Trim(RenderHook):
    """Has a console print tables, and groups with tables in them, without those blanks."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return the trimmed entries to print instead."""
        return [Trimmed(entry) if isinstance(entry, Table | FittingTable | Group) else entry for entry in renderables]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Printed entry without blanks at the ends of its lines."""

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


FILE_WIDTH = 250
TEXT_COLUMNS = frozenset({"plan", "config", "answer"})
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
        table.add_column(heading, justify="left" if heading in TEXT_COLUMNS else "right")
    return table
