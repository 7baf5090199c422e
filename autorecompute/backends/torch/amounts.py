"""How much is computed. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from autorecompute.ranges import Operations


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """What operators compute and move.

    Attributes:
        operations: Floating point operations of matrix products and convolutions.
        moved_bytes: What is read and written.
        cost: Seconds on a machine whose speeds are known; else bytes that could have been moved meanwhile.
    """

    operations: Operations = 0.0
    moved_bytes: Operations = 0.0
    cost: Operations = 0.0

    def __add__(self, other: Amount) -> Self:
        return type(self)(
            operations=self.operations + other.operations,
            moved_bytes=self.moved_bytes + other.moved_bytes,
            cost=self.cost + other.cost,
        )

    def times(self, share: float) -> Self:
        """Return a share of it."""
        return type(self)(
            operations=share * self.operations, moved_bytes=share * self.moved_bytes, cost=share * self.cost
        )

    def beyond(self, other: Amount) -> Self:
        """Return what there is more of than in the other."""
        return type(self)(
            operations=max(0.0, self.operations - other.operations),
            moved_bytes=max(0.0, self.moved_bytes - other.moved_bytes),
            cost=max(0.0, self.cost - other.cost),
        )


NOTHING = Amount()
