"""The peak of any mix of options over the units of a model, put together from one step for each option.

A step is cut into segments: the forward pass of each unit, the head and the loss, the backward pass of each unit, the
optimizer. What a segment does to the bytes that are alive is taken from the step in which all units had the option that
its unit has. That is exact where units share nothing but what goes from one to the next, and fast enough for hundreds
of thousands of mixes a second; where they share more, such as a ReLU in place at the end of a residual block, it is a
few percent off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autorecompute.backends.torch.live import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from autorecompute.backends.torch.live import Event, Segment


class DifferentStepsError(Exception):
    """Two steps do not go through the same segments, so that no mix can be put together from them."""


class Segments:
    """Steps cut into segments.

    Args:
        steps: For each option the events of a step, on fake tensors or on real ones, in which all units have it.
        units: How many units there are.

    Raises:
        DifferentStepsError: Two steps went through different segments.
    """

    def __init__(self, steps: Sequence[Sequence[Event]], units: int) -> None:
        pieces = [cut(events) for events in steps]
        order = [segment for segment, _, _ in pieces[0]]
        if any([segment for segment, _, _ in other] != order for other in pieces):
            raise DifferentStepsError
        self._owners = np.array([_owner(segment, units) for segment in order])
        self._change = np.array([[change for _, change, _ in one] for one in pieces], dtype=np.int64)
        self._highest = np.array([[highest for _, _, highest in one] for one in pieces], dtype=np.int64)

    def peaks(self, mixes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The most bytes alive above the step's start, for each mix.

        Args:
            mixes: A row for each mix, with the number of each unit's option in the order of the units' calls.
        """
        options = mixes[:, self._owners]
        places = np.arange(len(self._owners))
        change, highest = self._change[options, places], self._highest[options, places]
        before = np.cumsum(change, axis=1) - change
        peaks: NDArray[np.int64] = np.max(before + highest, axis=1)
        return peaks


def _owner(segment: Segment, units: int) -> int:
    """The unit whose option decides: the head goes with the last unit, and what lies before the first with that one."""
    return 0 if segment.phase == OUTSIDE else min(max(segment.unit, 0), units - 1)


def cut(events: Iterable[Event]) -> list[tuple[Segment, int, int]]:
    """The segments in order, each with what it changed in the end and the most that it ever added."""
    found: list[tuple[Segment, int, int]] = []
    for event in events:
        change, highest = found.pop()[1:] if found and found[-1][0] == event.segment else (0, 0)
        found.append((event.segment, change + event.change, max(highest, change + event.change)))
    return found
