"""A recompute plan as ORT detects it, and the grammar ``subgraph:option:count`` it is written in.

The count is always ``-1``: in ORT 1.17 to 1.19 a plan is on for all its occurrences or left out, whatever is asked.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from autorecompute.errors import UsageError

ALL_OCCURRENCES = -1
_REQUEST = re.compile(r"([^:]+):([12]):(-1|\d+)")


class Option(enum.IntEnum):
    """How a subgraph is recomputed: whole, or up to the cast that halves what is kept (a compromise)."""

    RECOMPUTE = 1
    RECOMPUTE_WITH_COMPROMISE = 2


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One switch of ORT's memory optimizer: a subgraph and the option it is recomputed with."""

    subgraph: str
    option: Option

    @classmethod
    def parse(cls, text: str) -> Row:
        """Reads ``Gelu+:1:-1``.

        Raises:
            UsageError: the text is not of that form, or asks for a count that ORT cannot keep.
        """
        row, count = cls.parse_request(text)
        if count != ALL_OCCURRENCES:
            raise UsageError(
                f"'{text}' is no recompute plan that ORT can keep: it takes all occurrences or none. Write -1."
            )
        return row

    @classmethod
    def parse_request(cls, text: str) -> tuple[Row, int]:
        """Reads ``Gelu+:1:2`` as users write it: the row, and how many occurrences it asks for, -1 for all.

        Raises:
            UsageError: the text is not of that form.
        """
        match = _REQUEST.fullmatch(text.strip())
        if match is None:
            raise UsageError(f"'{text}' is no recompute plan. A plan is written like Gelu+:1:-1.")
        return cls(match[1], Option(int(match[2]))), int(match[3])

    def __str__(self) -> str:
        return f"{self.subgraph}:{int(self.option)}:{ALL_OCCURRENCES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What ORT offers to recompute: one row, or several that only save memory together.

    Attributes:
        rows: The switches of the plan, sorted.
        frequency: How many nodes of the training graph the plan covers.
        saving_bytes: Saving at the first batch, ``None`` where a dimension is unknown. It is of the stash after the
            forward pass, not of the peak: a plan can save more of the peak, nothing, or less than nothing.
        saving_symbolic: The same as an expression in the symbolic dimensions of the model's inputs.
        stated_symbolic: The saving as ORT states it, where that is another: 1.19 counts one output of each node only.
    """

    rows: tuple[Row, ...]
    frequency: int
    saving_bytes: int | None
    saving_symbolic: str
    stated_symbolic: str | None = None

    @classmethod
    def parse(cls, key: str, *, frequency: int, saving_bytes: int | None, saving_symbolic: str) -> Plan:
        """Reads ORT's key of a plan: rows joined by commas."""
        rows = tuple(sorted({Row.parse(text) for text in key.split(",")}))
        return cls(rows=rows, frequency=frequency, saving_bytes=saving_bytes, saving_symbolic=saving_symbolic)

    @property
    def key(self) -> str:
        """The rows joined by commas; unique among the plans of a graph."""
        return ",".join(map(str, self.rows))

    @property
    def option(self) -> Option:
        """The strongest compromise among the rows."""
        return max(row.option for row in self.rows)

    @property
    def name(self) -> str:
        """The plan in words, without its counts: ``Gelu+``, or ``Cast+ (compromise)``."""
        subgraphs = " with ".join(row.subgraph for row in self.rows)
        return subgraphs if self.option is Option.RECOMPUTE else f"{subgraphs} (compromise)"
