"""Which part of a step runs, told from the calls of units and from the node that autograd is at."""

from __future__ import annotations

import bisect
import operator
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import _get_sequence_nr

from autorecompute.backends.torch.callers import keeps_for_backward
from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE, Segment

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module


class Timeline:
    """Tells which part of a step runs, from the calls of units and from the node that autograd is at.

    Put ``around`` around each unit and all that is around it already: what a unit drops when it returns belongs to it.

    Args:
        repeats: Whether there are units. Where there are none, each pass is told apart by the graph's nodes alone.
    """

    def __init__(self, *, repeats: bool = True) -> None:
        self._repeats, self._first, self._made = repeats, 0, 0
        self._calls: list[tuple[int, int]] = []
        self._phase = FORWARD
        self._last = self._forward = Segment(FORWARD, -1)

    def start(self) -> None:
        """Begin a step."""
        self._calls.clear()
        self._phase, self._forward, self._first = FORWARD, Segment(FORWARD, -1), _get_sequence_nr()

    def leave_backward(self) -> None:
        """End the backward pass: the optimizer is next."""
        self._phase = OUTSIDE

    def around(self, forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Follow one unit's call; an ``Around``."""
        is_forward = self._phase != BACKWARD and torch._C._current_autograd_node() is None
        if not is_forward or not keeps_for_backward():
            return forward(*args, **kwargs)
        first, place = _get_sequence_nr(), len(self._calls)
        self._forward = Segment(FORWARD, place)
        try:
            return forward(*args, **kwargs)
        finally:
            self._calls.append((first, _get_sequence_nr()))
            self._forward = Segment(FORWARD, place, is_behind=True)

    def segment(self) -> Segment:
        """Return the part that runs now."""
        node = torch._C._current_autograd_node()
        if node is not None:
            if self._phase != BACKWARD:
                self._phase, self._made = BACKWARD, _get_sequence_nr()
            self._last = self._going_through(node._sequence_nr())
        elif self._phase == FORWARD:
            made = _get_sequence_nr() - self._first
            self._last = self._forward if self._repeats else Segment(FORWARD, -1, node=made)
        elif self._phase == OUTSIDE:
            self._last = Segment(OUTSIDE, -1)
        return self._last

    def _going_through(self, number: int) -> Segment:
        """Return the part of the backward pass that a node of this number is in."""
        if number >= 1 << 62:  # gradients are put where they belong by nodes without a number
            is_first = self._last.phase != BACKWARD
            return Segment(BACKWARD, len(self._calls) - 1, is_behind=True) if is_first else self._last
        if number >= self._made and self._last.phase == BACKWARD:  # a checkpoint that reenters autograd made it
            return self._last
        unit = bisect.bisect_right(self._calls, number, key=operator.itemgetter(0)) - 1
        if unit < 0:
            return Segment(BACKWARD, -1, node=0 if self._repeats else number - self._first)
        first, end = self._calls[unit]
        is_behind = number >= end
        return Segment(BACKWARD, unit, is_behind, number - (end if is_behind else first))
