"""Runs one of the repeated units of a model for all, and adds the others up."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import TensorWeakRef

from autorecompute.backends.torch.fake.live import BACKWARD, FORWARD, OUTSIDE, Segment
from autorecompute.backends.torch.forecast.caching_allocator import CachingAllocator, settings_in
from autorecompute.backends.torch.forecast.records import Amount
from autorecompute.errors import SetupError
from autorecompute.units import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.fake.live import Event
    from autorecompute.backends.torch.fake.tensors import FakeLiveBytes
    from autorecompute.backends.torch.find.graphs import GraphForm
    from autorecompute.backends.torch.forecast.caching_allocator import AllocatorStats
    from autorecompute.backends.torch.switch.intercepting import Around
    from autorecompute.backends.torch.switch.rewriting import Program

    End = tuple[Segment, int]
    Moved = tuple[Segment, int, int, int]
    Cut = tuple[int, Segment, frozenset[int]]
    Lifetimes = dict[tuple[Segment, int], collections.Counter[End]]


STEPS = 3
"""Steps that are run through the allocator: what the first leaves free is in pieces that later ones may not fit in."""


def card_memory(step: FakeLiveBytes, **settings: Any) -> AllocatorStats:
    """Return the peaks that ``torch.cuda.memory_stats`` would show after some steps like this one, with these settings.

    The step is taken as it is: where it ran on the CPU's kernels, a card's kernels may keep other tensors. What
    libraries take for themselves, such as the workspace of cuBLAS, is not in it.
    """
    allocator = CachingAllocator(**settings)
    allocator.answer(requests_of(step))
    return allocator.peak


HOPPER = (9, 0)


def workspace_bytes(environment: Mapping[str, str], capability: tuple[int, int]) -> int:
    """Return the workspace that cuBLAS takes for each thread.

    ``getChosenWorkspaceSize`` and ``parseChosenWorkspaceSize`` in ``aten/src/ATen/cuda/CublasHandlePool.cpp``.
    """
    pairs = re.findall(r":(\d+):(\d+)", environment.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return KIB * sum(int(size) * int(count) for size, count in pairs)
    return 32 * MIB if capability >= HOPPER else KIB * (4096 * 2 + 16 * 8)


def fragmented_bytes(step: FakeLiveBytes, environment: Mapping[str, str], capability: tuple[int, int]) -> int | None:
    """Return the bytes that a fresh process reserves on a card beyond its tensors, in steps like this one.

    The workspace of the backward pass is among them; that of the forward pass is there before. ``None`` where the
    environment sets of the allocator what is not modelled.
    """
    try:
        peak = card_memory(step, **settings_in(environment))
    except SetupError:
        return None
    return peak.reserved - peak.requested + workspace_bytes(environment, capability)


def requests_of(step: FakeLiveBytes, steps: int = STEPS) -> Iterator[tuple[int, int]]:
    """Yield what training asks the allocator for: the model and a batch, then steps, in the first of them the state."""
    yield from ((number, size) for number, size in step.held.items() if number not in step.state)
    first = next((place for place, event in enumerate(step.events) if event.segment.phase == OUTSIDE), len(step.events))
    changes, left = [(event.storage, event.change) for event in step.events], collections.Counter[int]()
    for number, change in changes:
        left[number] += change
    undone = [(number, -change) for number, change in left.items() if change]  # the next step begins where this one did
    yield from changes[:first]
    yield from ((number, step.held[number]) for number in sorted(step.state))
    yield from changes[first:]
    yield from undone
    for _ in range(steps - 1):
        yield from (*changes, *undone)


class Extent(NamedTuple):
    """Change of the live bytes in a part of a step, and the most that it ever added."""

    change: int = 0
    highest: int = 0

    def then(self, other: Extent) -> Extent:
        """Return this part and the one behind it as one."""
        return Extent(self.change + other.change, max(self.highest, self.change + other.highest))


NO_EXTENT = Extent()

Nodes = tuple[tuple[int, Extent], ...]
"""The number and the extent of each node that a segment of a step goes through, in order."""
Piece = tuple[Segment, Nodes]


def cut(events: Iterable[Event], calls: int) -> list[Piece]:
    """Return the segments in order, those among them in which nothing changes: steps with other choices may change it.

    Where a step goes through segments in another order, or through one twice, they are as they come.
    """
    by_segment = itertools.groupby(events, key=lambda event: event.segment)
    found = [(segment, _nodes(group)) for segment, group in by_segment]
    usual, pieces = usual_order(calls), dict(found)
    if segments_of(found) != [segment for segment in usual if segment in pieces]:
        return found
    return [(segment, pieces.get(segment, ())) for segment in usual]


def segments_of(pieces: Iterable[Piece]) -> list[Segment]:
    """Return the segments of a step."""
    return [segment for segment, _ in pieces]


def usual_order(calls: int) -> list[Segment]:
    """Return the segments of a step with so many calls of units, in the order in which a step goes through them."""
    places = [(-1, False), *((unit, is_behind) for unit in range(calls) for is_behind in (False, True))]
    forward = [Segment(FORWARD, *place) for place in places]
    return [*forward, *(Segment(BACKWARD, *place) for place in reversed(places)), Segment(OUTSIDE, -1)]


def _nodes(events: Iterable[Event]) -> Nodes:
    found: dict[int, Extent] = {}
    for event in events:
        change = Extent(event.change, max(event.change, 0))
        found[event.segment.node] = found.get(event.segment.node, NO_EXTENT).then(change)
    return tuple(found.items())


def finer(plain: Sequence[Piece], others: Iterable[Sequence[Piece]]) -> list[Cut]:
    """Cut the segments of a step without recompute around each node in which others differ, which go through the same.

    Gives for each part the place of its segment, the segment, and its nodes.
    """
    return [
        (place, pieces[0][0], nodes)
        for place, pieces in enumerate(zip(plain, *others, strict=True))
        for nodes in _groups(pieces)
    ]


def parts_of(pieces: Sequence[Piece], cuts: Iterable[Cut]) -> list[Extent]:
    """Return the parts of a step."""
    return [
        functools.reduce(Extent.then, (extent for number, extent in pieces[place][1] if number in nodes), NO_EXTENT)
        for place, _, nodes in cuts
    ]


def _groups(pieces: Sequence[Piece]) -> list[frozenset[int]]:
    """Return the nodes of a segment by the parts that they are in; backward, from the last node to the first."""
    steps = [dict(nodes) for _, nodes in pieces]
    numbers = sorted(set().union(*steps), reverse=pieces[0][0].phase == BACKWARD)
    differing = {number for number in numbers if len({step.get(number) for step in steps}) > 1}
    parts = itertools.groupby(numbers, key=lambda number: number if number in differing else None)
    return [frozenset(group) for _, group in parts]


def lifetimes(events: Iterable[Event]) -> Lifetimes:
    """Count the storages of each size by the segments in which they came and went."""
    came: dict[int, Event] = {}
    found: Lifetimes = collections.defaultdict(collections.Counter)
    for event in events:
        if event.change > 0:
            came[event.storage] = event
        elif event.storage in came:
            start = came.pop(event.storage)
            found[start.segment, start.change][event.segment, event.segment.node] += 1
    return found


def _ends(plain: Lifetimes, other: Lifetimes) -> Iterator[tuple[Segment, int, list[End], list[End]]]:
    """Yield where what came in a forward segment goes in one step only: the segment, the size, and the ends of each."""
    for came, size in dict.fromkeys([*plain, *other]):
        if came.phase == FORWARD:
            ends, others = (step.get((came, size), collections.Counter()) for step in (plain, other))
            before, after = (sorted(left.elements(), key=_moment) for left in (ends - others, others - ends))
            yield came, size, before, after


def moved(plain: Lifetimes, other: Lifetimes) -> Iterator[Moved]:
    """Yield tensors of a forward segment that are freed elsewhere in the other step, because a neighbour keeps them.

    For each the segment and the node whose change differs for that, the unit that decides, and the bytes that are added
    to the change.

    What a checkpoint keeps of its own comes as the unit before it ends. A mask that blocks share is such a tensor, too:
    checkpointed ones keep it with their other arguments. So is what a ReLU in place leaves: the block keeps it for
    itself, and the one behind it as its input. What goes from further away may be kept by many, and stays where it is.
    """
    for came, size, before, after in _ends(plain, other):
        for (one, one_node), (two, two_node) in zip(before, after, strict=False):
            if two.phase != BACKWARD:
                continue
            if one.phase == FORWARD:
                yield one, one_node, two.unit, size
            elif one.phase == BACKWARD and came.unit == one.unit == two.unit - 1:
                yield two, two_node, one.unit, -size
        for two, _ in after[len(before) :]:  # it did not come at all
            if two.phase == BACKWARD and two.unit == came.unit + 1:
                yield came, 0, two.unit, size


def held_to_the_end(plain: Lifetimes, other: Lifetimes) -> Iterator[Moved]:
    """Yield, as :func:`moved`, what a unit makes and the other step lets go when later ones have run.

    These are weights that autocast has cast. Autocast holds them until it ends, and in the step without recompute the
    unit's graph does so longer.
    """
    for came, size, before, after in _ends(plain, other):
        for (one, _), (two, node) in zip(before, after, strict=False):
            is_beyond = two.unit > came.unit + 1 or (two.is_behind and two.unit > came.unit)
            if one.phase == BACKWARD and two.phase == FORWARD and is_beyond:
                yield two, node, came.unit, -size


def _moment(end: End) -> tuple[bool, int, int]:
    """Return a key for the order of a step, as far as it goes forward and then backward."""
    segment, node = end
    is_forward = segment.phase == FORWARD
    place = 2 * segment.unit + segment.is_behind
    return not is_forward, place if is_forward else -place, -node


class Link(NamedTuple):
    """A call of a unit, as far as that of the next one may be like it.

    Attributes:
        kind: Its class, with its parameters and buffers.
        results: The forms of what it returned; ``None`` where that is more than tensors.
        inputs: Numbers of the storages that it was given; ``outputs`` of those that it returned.
    """

    path: str
    kind: str
    graph: GraphForm
    results: tuple[tuple[Any, ...], ...] | None
    inputs: frozenset[int]
    outputs: frozenset[int]


def forms_of(result: Any) -> tuple[tuple[Any, ...], ...] | None:
    """Return the forms of the tensors in a result; ``None`` where it holds anything else."""
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return tuple((tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad) for leaf in leaves)


def repeated(links: Sequence[Link], programs: Mapping[str, Program], kept: int = 1) -> frozenset[str]:
    """Return the paths of the units between the second and the last of a row that are alike.

    Args:
        links: All calls of units, in order; where the model is called several times, the same each time.
        programs: For each unit how its operators are dropped.
        kept: The number of units at the end of a row that are left. Under ``fully_shard`` two: a unit's gradients are
            reduced while those of the one behind it still are, and behind the last there is none.
    """
    units = len({link.path for link in links})
    calls = [links[place : place + units] for place in range(0, len(links), units or 1)]
    if any([one.path for one in call] != [first.path for first in calls[0]] for call in calls):
        return frozenset()
    return frozenset.intersection(*(_repeated(call, programs, kept) for call in calls)) if calls else frozenset()


def _repeated(links: Sequence[Link], programs: Mapping[str, Program], kept: int) -> frozenset[str]:
    alike = [place > 0 and _is_alike(links[place - 1], link, programs) for place, link in enumerate(links)]
    # What a call is given beside what the call before returned.
    others = [frozenset[int](), *(two.inputs - one.outputs for one, two in itertools.pairwise(links))]
    chained = [place > 1 and others[place - 1] == others[place] for place in range(len(links))]
    inner = range(2, len(links) - kept)
    return frozenset(
        links[place].path
        for place in inner
        if all(alike[place - 1 : place + 1 + kept]) and chained[place] and chained[place + 1]
    )


def _is_alike(one: Link, other: Link, programs: Mapping[str, Program]) -> bool:
    return (
        bool(other.inputs & one.outputs)
        and one.results is not None
        and (one.kind, one.graph, one.results) == (other.kind, other.graph, other.results)
        and _drops(programs.get(one.path)) == _drops(programs.get(other.path))
    )


def _drops(program: Program | None) -> list[tuple[Any, ...]]:
    return [(drop.site, drop.slots, drop.recipe) for drop in program.drops] if program is not None else []


def last_result() -> tuple[Around, Around]:
    """Return what notes the result of a unit, and what stands in for a unit and returns the last result once more."""
    last: Any = None

    def keep(forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal last
        result = forward(*args, **kwargs)
        last = tree_map_only(Tensor, TensorWeakRef, result)  # it is not held
        return result

    def give(_forward: Callable[..., Any], _module: Module, /, *_args: Any, **_kwargs: Any) -> Any:
        return tree_map_only(TensorWeakRef, lambda reference: reference(), last)

    return keep, give


class Row:
    """The calls of units in a step, by their paths in order, some of which are left out."""

    def __init__(self, calls: Sequence[str], skipped: Collection[str]) -> None:
        self.skipped = skipped
        self._is_skipped = {place: path in skipped for place, path in enumerate(calls)}
        self._numbers = {-1: -1}
        for place, is_skipped in self._is_skipped.items():
            self._numbers[place] = self._numbers[place - 1] + (not is_skipped)
        self.calls = self._numbers[len(calls) - 1] + 1

    def whole(self, order: Sequence[Segment], pieces: Sequence[Piece]) -> list[Piece] | None:
        """Return the segments of the whole step, which goes through these; ``None`` as for :meth:`stand_ins`."""
        stand_ins, known = self.stand_ins(order, segments_of(pieces)), dict(pieces)
        if stand_ins is None:
            return None
        return [(segment, known[one]) for segment, one in zip(order, stand_ins, strict=True)]

    def stand_ins(self, order: Sequence[Segment], taken: Sequence[Segment]) -> list[Segment] | None:
        """Return for each segment of a whole step the one that stands for it.

        Args:
            order: The segments that a whole step goes through.
            taken: Segments of a step without the units that are left out; where they do not follow from the former, the
                answer is ``None``.
        """
        found = [self._brief(segment) for segment in order]
        left = [one for segment, one in zip(order, found, strict=True) if not self._is_skipped.get(segment.unit, False)]
        return found if left == list(taken) and set(found) <= set(taken) and len(set(taken)) == len(taken) else None

    def units(self, number: int, other: int) -> Iterator[tuple[int, int]]:
        """Yield the units of a whole step that one of this step stands for, each with what another one is beside it."""
        first = {brief: unit for unit, brief in reversed(self._numbers.items())}
        for unit, brief in self._numbers.items():
            if brief == number:
                yield unit, unit + other - number if abs(other - number) <= 1 else first[other]

    def all_of(self, number: int) -> list[int]:
        """Return the units of a whole step that one of this step stands for."""
        return [unit for unit, brief in self._numbers.items() if brief == number]

    def with_left_out(self, pieces: Iterable[Piece], held: Iterable[Moved]) -> list[Piece]:
        """Return the segments of the whole step, where units that are left out let go of what they hold."""
        more: dict[tuple[Segment, int], int] = collections.defaultdict(int)
        for segment, node, unit, size in held:
            whole = dataclasses.replace(segment, unit=self.all_of(segment.unit)[-1])
            more[whole, node] += (len(self.all_of(unit)) - 1) * size
        return [
            (
                segment,
                tuple((node, extent._replace(change=extent.change + more[segment, node])) for node, extent in nodes),
            )
            for segment, nodes in pieces
        ]

    def work(self, step: FakeLiveBytes, phases: Collection[str]) -> Amount:
        """Return the work of a whole step in these phases."""
        everywhere = [Segment(*each) for each in itertools.product(phases, self._numbers, (False, True))]
        return sum((step.work.get(self._brief(segment), Amount()) for segment in everywhere), Amount())

    def _brief(self, segment: Segment) -> Segment:
        return dataclasses.replace(segment, unit=self._numbers[segment.unit])
