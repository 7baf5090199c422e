"""What a step on fake tensors showed, and what PyTorch's CUDA caching allocator would make of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from autorecompute.backends.torch.amounts import Amount
from autorecompute.backends.torch.caching_allocator import CachingAllocator, Request
from autorecompute.backends.torch.live import OUTSIDE, Event, Segment

if TYPE_CHECKING:
    from autorecompute.backends.torch.caching_allocator import AllocatorSettings, AllocatorStats

STEPS = 3
"""Steps that are run through the allocator: what the first leaves free is in pieces that later ones may not fit in."""


@dataclasses.dataclass(frozen=True)
class FakeStep:
    """What one step on fake tensors showed.

    Attributes:
        base: Bytes that are alive before it.
        events: The changes in it.
        work: How much each part of it computed.
        held: The bytes of each storage that is alive before it, by its number.
        state: The numbers of those that an optimizer makes in its first step.
        kinds: Of which kind a storage's bytes are, by its number (``collectives``); activations have none.
    """

    base: int
    events: tuple[Event, ...]
    work: Mapping[Segment, Amount]
    held: Mapping[int, int]
    state: frozenset[int]
    kinds: Mapping[int, str] = dataclasses.field(default_factory=dict)


def card_memory(step: FakeStep, settings: AllocatorSettings | None = None, limit: int | None = None) -> AllocatorStats:
    """Return the peaks that ``torch.cuda.memory_stats`` would show after some steps like this one.

    The step is taken as it is: where it ran on the CPU's kernels, a card's kernels may keep other tensors. What
    libraries take for themselves, such as the workspace of cuBLAS, is not in it.

    Args:
        step: A step, as all after the first are.
        settings: What of ``PYTORCH_ALLOC_CONF`` decides about memory.
        limit: The most bytes that may be reserved; ``None`` for no limit.

    Raises:
        OutOfCardMemoryError: The step goes beyond the limit.
    """
    allocator = CachingAllocator(settings, limit)
    allocator.answer(requests_of(step))
    return allocator.peak


def requests_of(step: FakeStep, steps: int = STEPS) -> Iterator[Request]:
    """Yield what training asks the allocator for: the model and a batch, then steps, in the first of them the state.

    Args:
        step: A step, as all after the first are.
        steps: How many there are.
    """
    yield from (Request(number, size) for number, size in step.held.items() if number not in step.state)
    first = next((place for place, event in enumerate(step.events) if event.segment.phase == OUTSIDE), len(step.events))
    yield from _changes(step.events[:first])
    yield from (Request(number, step.held[number]) for number in sorted(step.state))
    yield from _changes(step.events[first:])
    yield from _as_before(step)
    for _ in range(steps - 1):
        yield from _changes(step.events)
        yield from _as_before(step)


def _changes(events: tuple[Event, ...]) -> Iterator[Request]:
    return (Request(event.storage, event.change) for event in events)


def _as_before(step: FakeStep) -> Iterator[Request]:
    """Return what brings the next step to where this one began.

    What it left goes, what it took from before comes again.
    """
    left: dict[int, int] = {}
    for event in step.events:
        left[event.storage] = left.get(event.storage, 0) + event.change
    return (Request(number, -change) for number, change in left.items() if change)
