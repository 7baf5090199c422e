"""Tables for terminals of any width: a narrow one gets fewer columns, and a narrower one a list."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderableType

NAME = "config"
WORDS = frozenset({"", NAME, "why", "outcome", "study", "knob"})
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
            table.add_column(column, justify="left" if column in WORDS else "right", width=width, overflow="fold")
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
