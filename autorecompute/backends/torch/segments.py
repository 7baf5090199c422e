"""A step cut into segments: the forward pass of each unit, the head and the loss, the backward pass of each unit.

The backward pass of a unit is cut further where choices change it, at the nodes of autograd's graph: two choices that
make things again in one unit add up within a node, and the most bytes that are alive at once are those of one of them.
Where nothing repeats, the forward pass is cut so, too.
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

    Lifetimes = dict[tuple[Segment, int], collections.Counter[tuple[Segment, int]]]


class Moved(NamedTuple):
    """Bytes that go in one part of a step, and in another one where another unit than that of the part decides so.

    Attributes:
        segment: The segment whose change differs for that.
        node: The node in it.
        unit: The unit that decides.
        size: What is added to the change.
    """

    segment: Segment
    node: int
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
        """Return this part and the one behind it as one."""
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


def cut(events: Iterable[Event], calls: int) -> list[Piece]:
    """Return the segments in order, those among them in which nothing changes: steps with other choices may change it.

    Where a step goes through segments in another order, or through one twice, they are as they come.

    Args:
        events: All changes of a step.
        calls: How many calls of units there are in it.
    """
    by_segment = itertools.groupby(events, key=lambda event: event.segment)
    found = [Piece(segment, _nodes(group)) for segment, group in by_segment]
    usual, pieces = usual_order(calls), {piece.segment: piece for piece in found}
    if [piece.segment for piece in found] != [segment for segment in usual if segment in pieces]:
        return found
    return [pieces.get(segment, Piece(segment, ())) for segment in usual]


def usual_order(calls: int) -> list[Segment]:
    """Return the segments of a step with so many calls of units, in the order in which a step goes through them."""
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

    def place(self, segment: Segment, node: int) -> int | None:
        """Return the part in which a node of a segment is; ``None`` where no step has it."""
        numbered = enumerate(group for groups in self._groups for group in groups)
        places = (place for place, group in numbered if self.segments[place] == segment and node in group)
        return next(places, None)

    def parts(self, pieces: Sequence[Piece]) -> list[Extent]:
        """Return the parts of a step."""
        return [
            _together(extent for number, extent in piece.nodes if number in group)
            for piece, groups in zip(pieces, self._groups, strict=True)
            for group in groups
        ]


def _groups(pieces: Sequence[Piece]) -> list[frozenset[int]]:
    """Return the nodes of a segment, by the parts that they are in, in order.

    Backward, from the last node to the first.
    """
    steps = [dict(piece.nodes) for piece in pieces]
    numbers = sorted(set().union(*steps), reverse=pieces[0].segment.phase == BACKWARD)
    differing = {number for number in numbers if len({step.get(number) for step in steps}) > 1}
    parts = itertools.groupby(numbers, key=lambda number: number if number in differing else None)
    return [frozenset(group) for _, group in parts]


def lifetimes(events: Iterable[Event]) -> Lifetimes:
    """Return how many storages of which size came in each segment, and in which one they went."""
    came: dict[int, Event] = {}
    found: Lifetimes = collections.defaultdict(collections.Counter)
    for event in events:
        if event.change > 0:
            came[event.storage] = event
        elif event.storage in came:
            start = came.pop(event.storage)
            found[start.segment, start.change][event.segment, event.segment.node] += 1
    return found


def moved(plain: Lifetimes, other: Lifetimes) -> Iterator[Moved]:
    """Tensors made in a forward segment that are freed elsewhere in the other step, because a neighbour keeps them.

    What a checkpoint keeps of its own comes as the unit before it ends. A mask that blocks share is such a tensor, too:
    checkpointed ones keep it with their other arguments. So is what a ReLU in place leaves: the block keeps it for
    itself, and the one behind it as its input. What goes from further away may be kept by many, and stays where it is.
    """
    for came, size in dict.fromkeys([*plain, *other]):
        if came.phase != FORWARD:
            continue
        ends, others = (step.get((came, size), collections.Counter()) for step in (plain, other))
        before, after = (sorted(left.elements(), key=_moment) for left in (ends - others, others - ends))
        for (one, one_node), (two, two_node) in zip(before, after, strict=False):
            if two.phase != BACKWARD:
                continue
            if one.phase == FORWARD:
                yield Moved(one, one_node, two.unit, size)
            elif one.phase == BACKWARD and came.unit == one.unit == two.unit - 1:
                yield Moved(two, two_node, one.unit, -size)
        for two, _ in after[len(before) :]:  # it did not come at all
            if two.phase == BACKWARD and two.unit == came.unit + 1:
                yield Moved(came, 0, two.unit, size)


def _moment(end: tuple[Segment, int]) -> tuple[bool, int, int]:
    """Return a key for the order of a step, as far as it goes forward and then backward."""
    segment, node = end
    is_forward = segment.phase == FORWARD
    place = 2 * segment.unit + segment.is_behind
    return not is_forward, place if is_forward else -place, -node
