"""The memory that a training step holds, from its first operation to its last."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory.step import Phase, StepProfile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.memory.step import Tensor


LARGEST = 10
"""So many tensors tell what a peak is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A profiled step at some dimensions: the bytes of all tensors that are alive during each of its operations.

    Attributes:
        profile: The step.
        sizes: Bytes of each of its tensors.
        live_bytes: Bytes alive during each operation.
    """

    profile: StepProfile
    sizes: tuple[int, ...]
    live_bytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Position of the operation during which most is alive; the first of several."""
        return self.live_bytes.index(self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Bytes alive at the peak, beyond what is held before the step."""
        return max(self.live_bytes)

    @property
    def stash_bytes(self) -> int:
        """Bytes that the forward pass leaves for the backward pass."""
        return sum(size for tensor, size in self._sized() if self.profile.is_stashed(tensor))

    def alive_at(self, position: int) -> list[tuple[Tensor, int]]:
        """Return the tensors that are alive during an operation, with their bytes, the largest first."""
        alive = [(tensor, size) for tensor, size in self._sized() if tensor.first <= position <= tensor.last]
        return sorted(alive, key=lambda pair: (-pair[1], pair[0].name))

    def largest_at_peak(self) -> list[tuple[Tensor, int]]:
        """Return the largest tensors at the peak, with their bytes."""
        return self.alive_at(self.peak)[:LARGEST]

    def live_by_phase(self) -> dict[Phase, tuple[int, ...]]:
        """Bytes alive during each operation, by what they were made in; they add up to ``live_bytes``."""
        return {
            phase: _accumulate(
                [(tensor, size) for tensor, size in self._sized() if self.profile.phase_of(tensor) is phase],
                len(self.live_bytes),
            )
            for phase in Phase
        }

    def live_by_layer(self) -> dict[str, tuple[int, ...]]:
        """Bytes alive during each operation that the forward pass of each layer made, in the order of the layers.

        What it made outside of all layers has the name ''; all add up to what the forward pass made.
        """
        profile = self.profile
        made: dict[str, list[tuple[Tensor, int]]] = {}
        for tensor, size in sorted(self._sized(), key=lambda pair: pair[0].first):
            if profile.phase_of(tensor) is Phase.FORWARD:
                made.setdefault(profile.layer_of(profile.operations[tensor.first]), []).append((tensor, size))
        return {layer: _accumulate(tensors, len(self.live_bytes)) for layer, tensors in made.items()}

    def _sized(self) -> list[tuple[Tensor, int]]:
        return list(zip(self.profile.tensors, self.sizes, strict=True))


def trace(profile: StepProfile, dims: Mapping[str, int] | None = None) -> Timeline:
    """Return the timeline of a profiled step.

    Args:
        profile: The step.
        dims: Dimensions to see it at instead of its own: every tensor has its symbolic shape.

    Raises:
        KeyError: a shape depends on a dimension that is not among them.
    """
    dims = {**profile.dims, **(dims or {})}
    sizes = tuple(tensor.bytes_at(dims) for tensor in profile.tensors)
    live = _accumulate(list(zip(profile.tensors, sizes, strict=True)), len(profile.operations))
    return Timeline(profile=profile, sizes=sizes, live_bytes=live)


def _accumulate(tensors: list[tuple[Tensor, int]], length: int) -> tuple[int, ...]:
    changes = [0] * (length + 1)
    for tensor, size in tensors:
        changes[tensor.first] += size
        changes[min(tensor.last, length - 1) + 1] -= size
    return tuple(itertools.accumulate(changes[:length]))
