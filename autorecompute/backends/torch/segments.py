"""A step cut into segments: the forward pass of each unit, the head and the loss, the backward pass of each unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autorecompute.backends.torch.live import Event, Segment


def cut(events: Iterable[Event]) -> list[tuple[Segment, int, int]]:
    """The segments in order, each with what it changed in the end and the most that it ever added."""
    found: list[tuple[Segment, int, int]] = []
    for event in events:
        change, highest = found.pop()[1:] if found and found[-1][0] == event.segment else (0, 0)
        found.append((event.segment, change + event.change, max(highest, change + event.change)))
    return found
