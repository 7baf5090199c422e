"""A step cut into segments: the forward pass of each unit, the head and the loss, the backward pass of each unit."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.torch.live import BACKWARD, FORWARD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from autorecompute.backends.torch.live import Event, Segment

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


def cut(events: Iterable[Event]) -> list[tuple[Segment, int, int]]:
    """The segments in order, each with what it changed in the end and the most that it ever added."""
    found: list[tuple[Segment, int, int]] = []
    for event in events:
        change, highest = found.pop()[1:] if found and found[-1][0] == event.segment else (0, 0)
        found.append((event.segment, change + event.change, max(highest, change + event.change)))
    return found


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
