"""Tables that fit their place, and the console that prints them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, Group
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType


def shorten(text: str, width: int) -> str:
    """Return the text, cut in its middle to the width: a config's name tells most at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def make_table(*headings: str, words: Collection[str] | None = None, whole: Collection[str] = ()) -> Table:
    """Return a table without lines.

    Columns of ``words``, by default all, stand to the left, others to the right. Cells of ``whole`` ones have one line.
    """
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        justify = "left" if words is None or heading in words else "right"
        table.add_column(heading, justify=justify, no_wrap=heading in whole, overflow="fold")  # type: ignore[arg-type]
    return table


NAME = "config"
LEFT_ALIGNED = frozenset({"", NAME, "why", "outcome", "study", "knob"})
"""Columns of words. All others hold figures."""
WRAPPED = frozenset({NAME, "why", "study"})
"""Columns that may take several lines. The cells of all others stay whole."""
UNNAMED = frozenset({"", "#", "outcome"})
"""Columns whose cells need no heading beside them in a list."""
LEAST_WIDTH = 20  # so wide is a column at least whose cells are broken into lines
GAP = 2
UNKNOWN = "-"
HARD_SPACE = "\N{NO-BREAK SPACE}"
INDENT = "  "


def fit_table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], width: int, spared: Collection[str] = ()
) -> Table | Group:
    """Return rows under headings in the widest form that there is room for: a table, or a list of the rows.

    The first column tells what a row is of. The ``spared`` ones are those that a narrow terminal does without. Nothing
    in a cell is read as markup.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    every = range(len(columns))
    for places in (every, [place for place in every if columns[place] not in spared]):
        texts = [[columns[place], *(row[place].plain for row in cells)] for place in places]
        widths = _widths(texts, width)
        if sum(widths) + GAP * (len(widths) - 1) <= width:
            table = make_table(*(columns[place] for place in places), words=LEFT_ALIGNED)
            for column, least in zip(table.columns, widths, strict=True):
                column.width = least
            for row in cells:
                table.add_row(*(row[place] for place in places))
            return table
    return Group(*(line for row in cells for line in _entry(columns, row, width)))


def _widths(columns: Sequence[Sequence[str]], most: int) -> list[int]:
    """Return the width of each column: what it needs, and of the rest as much as it has a use for."""
    widths = [_least_width(*texts) for texts in columns]
    rest = most - sum(widths) - GAP * (len(widths) - 1)
    for place, texts in enumerate(columns):
        more = max(min(rest, max(map(cell_len, texts)) - widths[place]), 0)
        widths[place] += more
        rest -= more
    return widths


def _least_width(heading: str, *texts: str) -> int:
    whole = max(map(cell_len, (heading, *texts)))
    if heading not in WRAPPED:
        return whole
    # A name is broken between its words, and never inside of one.
    return max(min(whole, LEAST_WIDTH), *(cell_len(word) for text in (heading, *texts) for word in text.split()))


def _entry(columns: Sequence[str], row: Sequence[Text], width: int) -> Iterator[Text]:
    """Yield a row of the list.

    Its name, and on lines of their own its figures, each with its heading and unbroken.
    """
    first, *others = zip(columns, row, strict=True)
    name = [cell.plain for column, cell in others if column == NAME and cell.plain]
    figures = [_headed(column, cell) for column, cell in others if column != NAME and cell.plain not in {"", UNKNOWN}]
    yield Text(": ".join([_headed(*first), *name]), style=first[1].style)
    unbroken = ", ".join(figure.replace(" ", HARD_SPACE) for figure in figures)
    for line in textwrap.wrap(unbroken, width - len(INDENT), break_on_hyphens=False):
        yield Text(f"{INDENT}{line.replace(HARD_SPACE, ' ')}")


def _headed(column: str, cell: Text) -> str:
    return cell.plain if column in UNNAMED else f"{column} {cell.plain}"


FILE_WIDTH = 250


def make_console() -> Console:
    """Return standard output, wide where it is no terminal: a file has no edge at which to wrap."""
    console = _PlainConsole(highlight=False)
    return console if console.is_terminal else _PlainConsole(highlight=False, width=FILE_WIDTH)


class _PlainConsole(Console):
    """Prints control characters as Python writes them, and tables without blanks at the ends of their lines."""

    _depth = 0

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        self._depth += 1
        try:
            segments = list(super().render(renderable, options))
        finally:
            self._depth -= 1
        if self._depth:  # a part of what is printed: it has its place by its width as it is
            return segments
        if isinstance(renderable, Table):
            lines = map(_without_end, Segment.split_lines(segments))
            segments = [segment for line in lines for segment in (*line, Segment.line())]
        # What rich itself says to the terminal, colours for instance, passes.
        return [one if one.control else Segment(printable(one.text), one.style) for one in segments]


def _without_end(line: list[Segment]) -> list[Segment]:
    while line and not line[-1].text.strip(" "):
        line.pop()
    if line:
        text, style, control = line[-1]
        line[-1] = Segment(text.rstrip(" "), style, control)
    return line
