"""A config: the set of plans that a training run recomputes, in a form that is equal exactly when its effect is."""

from __future__ import annotations

import enum
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.plans.plan import Plan, Row

if TYPE_CHECKING:
    from collections.abc import Iterable

HASH_LENGTH = 12


class Level(enum.IntEnum):
    """ORT's ``ORTMODULE_MEMORY_OPT_LEVEL``: plans chosen one by one, or all of them within each transformer layer."""

    CHOSEN = 0
    LAYERWISE = 1
    LAYERWISE_WITH_COMPROMISE = 2


@dataclass(frozen=True, slots=True)
class Config:
    """The rows that are on, or one of ORT's levels, which chooses its rows itself.

    ``Config()`` recomputes nothing.

    Raises:
        ValueError: a level comes with rows, or one subgraph with both options (ORT would keep the last it reads).
    """

    rows: frozenset[Row] = frozenset()
    level: Level = Level.CHOSEN

    def __post_init__(self) -> None:
        if self.rows and self.level is not Level.CHOSEN:
            raise ValueError("a level chooses its own rows")
        if len({row.subgraph for row in self.rows}) < len(self.rows):
            raise ValueError("a subgraph can be recomputed with one option only")

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Config:
        """The config that switches these plans on."""
        return cls(frozenset(row for plan in plans for row in plan.rows))

    @classmethod
    def from_rows(cls, texts: Iterable[str]) -> Config:
        """Reads rows as emitted: ``["Gelu+:1:-1", …]``.

        Raises:
            UsageError: a row cannot be read, or one subgraph comes with both options.
        """
        rows = frozenset(Row.parse(text) for text in texts)
        try:
            return cls(rows)
        except ValueError as error:
            raise UsageError(f"These plans cannot be on together: {error}.") from error

    @property
    def is_none(self) -> bool:
        """Whether nothing is recomputed."""
        return not self.rows and self.level is Level.CHOSEN

    @property
    def row_texts(self) -> list[str]:
        """The rows as ORT reads them, in a fixed order."""
        return [str(row) for row in sorted(self.rows)]

    @property
    def hash(self) -> str:
        """Twelve hexadecimal digits, the same for equal configs on any machine and in any version."""
        canonical = json.dumps({"level": int(self.level), "rows": self.row_texts}, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:HASH_LENGTH]

    def has(self, plan: Plan) -> bool:
        """Whether all rows of the plan are on."""
        return self.rows.issuperset(plan.rows)

    def with_plan(self, plan: Plan) -> Config:
        """This config with the plan on; a row of the same subgraph with the other option gives way."""
        replaced = {row.subgraph for row in plan.rows}
        return Config(frozenset(row for row in self.rows if row.subgraph not in replaced) | frozenset(plan.rows))

    def without_plan(self, plan: Plan) -> Config:
        """This config with all rows of the plan off."""
        return Config(self.rows - frozenset(plan.rows))
