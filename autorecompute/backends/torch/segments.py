"""A step cut into segments: the forward pass of each unit, the head and the loss, the backward pass of each unit.

The backward pass of a unit is cut further where choices change it, at the nodes of autograd's graph: two choices that
make things again in one unit add up within a node, and the most bytes that are alive at once are those of one of them.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autorecompute.backends.torch.live import Event

    Lifetimes = collections.Counter[tuple[Segment, Segment]]


class Kept(NamedTuple):
    """Bytes that go in one step and are kept in another one.

    Attributes:
        segment: The forward segment in which they go.
        unit: The unit whose backward pass they are kept for; the last one, where several units keep them.
        size: How many there are.
    """

    segment: Segment
    unit: int
    size: int


class Extent(NamedTuple):
    """What a part of a step does to the bytes that are alive.

    Attributes:
        change: By how many they have changed in the end.
        highest: The most that it ever added.
    """

    change: int
    highest: int

    def then(self, other: Extent) -> Extent:
        """This part and the one behind it as one."""
        return Extent(self.change + other.change, max(self.highest, self.change + other.highest))


NOTHING = Extent(0, 0)


class Piece(NamedTuple):
    """A segment of a step.

    Attributes:
        segment: Which.
        nodes: What it does in each node that it goes through, in order: the node's number, and its extent.
    """

    segment: Segment
    nodes: tuple[tuple[int, Extent], ...]

    @property
    def extent(self) -> Extent:
        """What it does as a whole."""
        return _together(extent for _, extent in self.nodes)


def cut(events: Iterable[Event], calls: int) -> list[Piece]:
    """The segments in order, those among them in which nothing changes: steps with other choices may change it.

    Where a step goes through segments in another order, or through one twice, they are as they come.

    Args:
        events: All changes of a step.
        calls: How many calls of units there are in it.
    """
    by_segment = itertools.groupby(events, key=lambda event: event.segment)
    found = [Piece(segment, _nodes(group)) for segment, group in by_segment]
    usual, pieces = _usual_order(calls), {piece.segment: piece for piece in found}
    if [piece.segment for piece in found] != [segment for segment in usual if segment in pieces]:
        return found
    return [pieces.get(segment, Piece(segment, ())) for segment in usual]


def _usual_order(calls: int) -> list[Segment]:
    forward = [Segment(FORWARD, unit, is_behind) for unit in range(calls) for is_behind in (False, True)]
    forward.insert(0, Segment(FORWARD, -1))
    backward = [dataclasses.replace(segment, phase=BACKWARD) for segment in reversed(forward)]
    return [*forward, *backward, Segment(OUTSIDE, -1)]


def _nodes(events: Iterable[Event]) -> tuple[tuple[int, Extent], ...]:
    found: dict[int, Extent] = {}
    for event in events:
        change = Extent(event.change, max(event.change, 0))
        found[event.segment.node] = found.get(event.segment.node, NOTHING).then(change)
    return tuple(found.items())


def _together(extents: Iterable[Extent]) -> Extent:
    return functools.reduce(Extent.then, extents, NOTHING)


class Cuts:
    """Where segments are cut further: around each node in which the steps differ.

    Args:
        plain: The segments of a step without recompute.
        others: Those of steps with choices, which go through the same.
    """

    def __init__(self, plain: Sequence[Piece], others: Sequence[Sequence[Piece]]) -> None:
        self._groups = [_groups(pieces) for pieces in zip(plain, *others, strict=True)]
        self.segments = [piece.segment for piece, groups in zip(plain, self._groups, strict=True) for _ in groups]
        """The segment of each part."""

    def parts(self, pieces: Sequence[Piece]) -> list[Extent]:
        """The parts of a step."""
        return [
            _together(extent for number, extent in piece.nodes if number in group)
            for piece, groups in zip(pieces, self._groups, strict=True)
            for group in groups
        ]


def _groups(pieces: Sequence[Piece]) -> list[frozenset[int]]:
    """The nodes of a segment, by the parts that they are in; all steps go through them from the last to the first."""
    steps = [dict(piece.nodes) for piece in pieces]
    numbers = sorted(set().union(*steps), reverse=True)
    differing = {number for number in numbers if len({step.get(number) for step in steps}) > 1}
    parts = itertools.groupby(numbers, key=lambda number: number if number in differing else None)
    return [frozenset(group) for _, group in parts]


def lifetimes(events: Iterable[Event]) -> Lifetimes:
    """Bytes by the segment in which they came and the one in which they went."""
    came: dict[int, Segment] = {}
    found: Lifetimes = collections.Counter()
    for event in events:
        if event.change > 0:
            came[event.storage] = event.segment
        elif event.storage in came:
            found[came.pop(event.storage), event.segment] -= event.change
    return found


def kept(plain: Lifetimes, other: Lifetimes) -> Iterator[Kept]:
    """What goes in a forward segment of a plain step and is kept for the backward pass in another step.

    A mask that blocks share is such a tensor: checkpointed ones keep it with their other arguments.
    """
    for (came, went), size in plain.items():
        stays = size - other[came, went]
        if went.phase != FORWARD or stays <= 0:
            continue
        keepers = [end.unit for start, end in other - plain if start == came and end.phase == BACKWARD]
        if keepers:
            yield Kept(went, min(keepers), stays)
