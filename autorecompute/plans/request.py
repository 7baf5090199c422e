"""What a user has switched on already, and what ORT makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autorecompute.plans.config import Config, Level
from autorecompute.plans.plan import ALL_OCCURRENCES, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.plans.insight import Insight
    from autorecompute.plans.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The rows that are asked for, or a level that chooses them.

    Attributes:
        level: ORT's level; one above 0 leaves the rows unread.
        counts: Each row with the occurrences it is asked for, -1 for all.
    """

    level: Level = Level.CHOSEN
    counts: Mapping[Row, int] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Whether ORT says that its memory optimizer is on; it says so even where it knows none of the rows."""
        return self.level is not Level.CHOSEN or bool(self.counts)

    def resolve(self, plans: Sequence[Plan]) -> dict[Row, int]:
        """The rows that take effect, each with its count.

        Args:
            plans: What is offered under the level, largest saving first. A level takes them in this order, and of two
                rows for one subgraph ORT keeps the last.
        """
        offered = [row for plan in plans for row in plan.rows]
        if self.level is Level.CHOSEN:
            return {row: count for row, count in self.counts.items() if row in offered}
        last = {row.subgraph: row for row in offered if row.option <= self.level}
        return dict.fromkeys(last.values(), ALL_OCCURRENCES)

    def as_config(self, plans: Sequence[Plan]) -> Config:
        """What takes effect, as a config; ORT recomputes all occurrences of a row whatever its count."""
        return Config(level=self.level) if self.level is not Level.CHOSEN else Config(frozenset(self.resolve(plans)))

    def unknown(self, plans: Sequence[Plan]) -> list[Row]:
        """Rows that ORT ignores without a word, as the graph has no such plan."""
        offered = {row for plan in plans for row in plan.rows}
        return sorted(row for row in self.counts if row not in offered)


def count_recomputed(row: Row, counts: Mapping[Row, int], insights: Sequence[Insight]) -> int:
    """How many nodes ORT 1.17 to 1.19 recomputes for a row: all it is offered for, and all but one for a count of 0.

    Of two options for one node the first takes effect.

    Args:
        row: The row.
        counts: The rows that take effect, each with its count.
        insights: What the rows are offered for.
    """
    if row not in counts:
        return 0
    nodes = sum(
        insight.frequency
        for insight in insights
        if next((choice.row for choice in insight.choices if choice.row in counts), None) == row
    )
    return max(0, nodes - (counts[row] == 0))
