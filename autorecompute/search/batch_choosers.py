"""Chooses which batch to measure next: first without recompute, then with it. Knows nothing of processes.

The answers depend on the curve alone, so that an interrupted search goes on where it stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autorecompute.search.growth import Limits, per_sample_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.figures import CurvePoint

SURELY_TOO_LARGE = 1.1
"""A batch that is forecast to need so many times the limit is not measured without recompute."""


class BatchChooser(Protocol):
    """Chooses batches from what was measured."""

    def without(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next batch to measure without recompute; ``None`` when enough is known."""
        ...

    def recomputed(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next batch to tune with recompute; ``None`` when nothing is left to gain."""
        ...

    def expected(self, curve: Sequence[CurvePoint]) -> int:
        """Among how many batches trials and time have to be shared, the next one included."""
        ...

    def untuned(self, curve: Sequence[CurvePoint]) -> list[int]:
        """Return the batches that were asked for, that some config may hold, and that nobody has tuned."""
        ...

    def may_answer(self, batch: int) -> bool:
        """Tell whether this batch may be the answer, and not only what it is compared with."""
        ...


@dataclass(frozen=True, slots=True)
class Listed:
    """Exactly the batches that were asked for, the smallest first.

    Args:
        batches: In ascending order.
        limits: Between what memory lies.
    """

    batches: tuple[int, ...]
    limits: Limits

    def without(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next larger one, as long as all before it fit and it may fit as well."""
        points = {point.batch: point for point in curve}
        for batch in self.batches:
            if batch not in points:
                return None if self._is_too_large(batch, curve) else batch
            if not points[batch].fits_without:
                return None
        return None

    def recomputed(self, curve: Sequence[CurvePoint]) -> int | None:
        """Return the next one that does not fit without."""
        return next(iter(self._left(curve)), None)

    def expected(self, curve: Sequence[CurvePoint]) -> int:
        """Return those that are left."""
        return max(len(self._left(curve)), 1)

    def untuned(self, curve: Sequence[CurvePoint]) -> list[int]:
        """Return those that are left, below any that no config holds."""
        tuned = [point for point in curve if point.recomputed is not None]
        too_large = min((point.batch for point in tuned if not point.fits_with), default=math.inf)
        return [batch for batch in self._left(curve) if batch < too_large]

    def may_answer(self, batch: int) -> bool:
        """Tell whether it was asked for."""
        return batch in self.batches

    def _left(self, curve: Sequence[CurvePoint]) -> list[int]:
        done = {point.batch for point in curve if point.fits_without or point.recomputed is not None}
        return [batch for batch in self.batches if batch not in done]

    def _is_too_large(self, batch: int, curve: Sequence[CurvePoint]) -> bool:
        slope = per_sample_bytes(curve, self.limits)
        if slope is None:
            return False
        return self.limits.resting_bytes + slope * batch > SURELY_TOO_LARGE * self.limits.limit_bytes
