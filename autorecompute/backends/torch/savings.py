"""What a recomputed module no longer holds between the forward and the backward pass, in bytes for any batch."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from autorecompute.backends.torch.structure import is_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from autorecompute.backends.torch.probe import Observation, Saved


@dataclasses.dataclass(frozen=True)
class Saving:
    """Bytes as ``fixed + per_sample * batch``.

    Attributes:
        fixed: Bytes that do not depend on the batch.
        per_sample: Bytes that each sample adds.
    """

    fixed: float
    per_sample: float

    def at(self, batch: int) -> float:
        """Return the bytes at a batch."""
        return self.fixed + self.per_sample * batch

    def __sub__(self, other: Saving) -> Saving:
        return Saving(self.fixed - other.fixed, self.per_sample - other.per_sample)


def saving_of(found: Iterable[Saved], batch: int) -> Saving:
    """Return what these storages take."""
    storages = list(found)
    scaling = sum(saved.bytes for saved in storages if saved.scales)
    return Saving(sum(saved.bytes for saved in storages) - scaling, scaling / batch)


def saving_of_modules(seen: Observation, paths: Collection[str]) -> Saving:
    """Return what checkpointing these modules saves: what only they saved, less the inputs that only they hold then."""
    held = [seen.given[number] for number in given(seen, paths) if number not in seen.saved]
    dropped = [seen.saved[number] for number in kept_alone(seen, paths)]
    return saving_of(dropped, seen.batch) - saving_of(held, seen.batch)


def given(seen: Observation, paths: Collection[str]) -> set[int]:
    """Return the tensors that the calls of these paths are given."""
    return {number for call in seen.calls if call.path in paths for number in call.inputs}


def kept_alone(seen: Observation, paths: Collection[str]) -> set[int]:
    """Return the tensors that nothing but these modules keeps, and that they are not given."""
    return {
        number
        for number, saved in seen.saved.items()
        if all(any(is_within(saver, path) for path in paths) for saver in saved.savers)
    } - given(seen, paths)
