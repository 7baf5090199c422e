"""Units that do what the one before them does: fake steps leave them out.

Of a row of units that are alike, the first, the second and the last one or two are run. The second stands for those in
between: they too have a unit before and behind them.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import TensorWeakRef

from autorecompute.backends.torch.amounts import Amount
from autorecompute.backends.torch.live import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.fake_step import FakeStep
    from autorecompute.backends.torch.graphs import Plan
    from autorecompute.backends.torch.rewriting import Program
    from autorecompute.backends.torch.segments import Piece


class DifferentStepsError(Exception):
    """A step without some units does not go through the same segments as a whole one."""


class Link(NamedTuple):
    """A call of a unit, as far as that of the next one may be like it.

    Attributes:
        path: The unit.
        kind: Its class, with its parameters and buffers.
        graph: The autograd graph that it left.
        results: The forms of what it returned; ``None`` where that is more than tensors.
        inputs: Storages of what it was given.
        outputs: Storages of what it returned.
    """

    path: str
    kind: str
    graph: Plan
    results: tuple[tuple[Any, ...], ...] | None
    inputs: frozenset[int]
    outputs: frozenset[int]

    def follows(self, before: Link) -> bool:
        """Tell whether the call was given what the one before returned."""
        return bool(self.inputs & before.outputs)


def forms_of(result: Any) -> tuple[tuple[Any, ...], ...] | None:
    """Return the forms of the tensors in a result; ``None`` where it holds anything else."""
    leaves = [leaf for leaf in tree_leaves(result) if leaf is not None]
    if not all(isinstance(leaf, Tensor) for leaf in leaves):
        return None
    return tuple((tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.requires_grad) for leaf in leaves)


def repeated(links: Sequence[Link], programs: Mapping[str, Program], kept: int = 1) -> frozenset[str]:
    """Paths of the units between the second and the last of a row that are alike.

    Args:
        links: All calls of units, in order; where the model is called several times, the same each time.
        programs: For each unit how its operators are dropped.
        kept: How many at the end of a row are left. Under ``fully_shard`` two: a unit's gradients are reduced while
            those of the one behind it still are, and behind the last there is none.
    """
    units = len({link.path for link in links})
    calls = [links[place : place + units] for place in range(0, len(links), units or 1)]
    if any([one.path for one in call] != [first.path for first in calls[0]] for call in calls):
        return frozenset()
    return frozenset.intersection(*(_repeated(call, programs, kept) for call in calls)) if calls else frozenset()


def _repeated(links: Sequence[Link], programs: Mapping[str, Program], kept: int) -> frozenset[str]:
    """Return the repeats of one call of the model."""
    alike = [place > 0 and _is_alike(links[place - 1], link, programs) for place, link in enumerate(links)]
    chained = [place > 1 and _is_chained(*links[place - 2 : place + 1]) for place in range(len(links))]
    inner = range(2, len(links) - kept)
    return frozenset(
        links[place].path
        for place in inner
        if all(alike[place - 1 : place + 1 + kept]) and chained[place] and chained[place + 1]
    )


def _is_alike(one: Link, other: Link, programs: Mapping[str, Program]) -> bool:
    return (
        other.follows(one)
        and one.results is not None
        and (one.kind, one.graph, one.results) == (other.kind, other.graph, other.results)
        and _drops(programs.get(one.path)) == _drops(programs.get(other.path))
    )


def _drops(program: Program | None) -> list[tuple[Any, ...]]:
    return [(drop.site, drop.slots, drop.recipe) for drop in program.drops] if program is not None else []


def _is_chained(first: Link, one: Link, other: Link) -> bool:
    """Tell whether two calls were given the same beside what the call before each returned."""
    return one.inputs - first.outputs == other.inputs - one.outputs


class LastResult:
    """What the last unit returned, without holding it: a unit that is left out returns it once more."""

    def __init__(self) -> None:
        self._result: Any = None

    def keep(self, forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Look at what a unit returns; an ``Around``."""
        result = forward(*args, **kwargs)
        self._result = tree_map_only(Tensor, TensorWeakRef, result)
        return result

    def give(self, _forward: Callable[..., Any], _module: Module, /, *_args: Any, **_kwargs: Any) -> Any:
        """Stand in for a unit; an ``Around``."""
        return tree_map_only(TensorWeakRef, lambda reference: reference(), self._result)


class Row:
    """The calls of units in a step, some of which are left out.

    Args:
        calls: Paths of the units, in the order of their calls.
        skipped: Those that are left out.
    """

    def __init__(self, calls: Sequence[str], skipped: Collection[str]) -> None:
        self.skipped = skipped
        self.calls = sum(path not in skipped for path in calls)
        """How many calls are left."""
        self._is_skipped = {place: path in skipped for place, path in enumerate(calls)}
        self._numbers = {-1: -1}
        for place, path in enumerate(calls):
            self._numbers[place] = self._numbers[place - 1] + (path not in skipped)

    def whole(self, order: Iterable[Segment], pieces: Sequence[Piece]) -> list[Piece]:
        """Return the segments of the whole step.

        Args:
            order: The segments that a whole step goes through.
            pieces: Those of one without the units that are left out.

        Raises:
            DifferentStepsError: The latter do not follow from the former.
        """
        known, segments = {piece.segment: piece for piece in pieces}, list(order)
        stand_ins = self.stand_ins(segments, [piece.segment for piece in pieces])
        return [known[one]._replace(segment=segment) for segment, one in zip(segments, stand_ins, strict=True)]

    def stand_ins(self, order: Sequence[Segment], taken: Sequence[Segment]) -> list[Segment]:
        """Return for each segment of a whole step the one that stands for it.

        Args:
            order: The segments that a whole step goes through.
            taken: Those that one without the units that are left out goes through.

        Raises:
            DifferentStepsError: The latter do not follow from the former.
        """
        known, left, found = set(taken), iter(taken), []
        for segment in order:
            brief = self._brief(segment)
            if not self._is_skipped.get(segment.unit, False) and next(left, None) != brief:
                raise DifferentStepsError
            if brief not in known:
                raise DifferentStepsError
            found.append(brief)
        if len(known) < len(taken) or next(left, None) is not None:
            raise DifferentStepsError
        return found

    def units(self, number: int, other: int) -> Iterator[tuple[int, int]]:
        """Yield the units of a whole step that one of this step stands for, each with what another one is beside it."""
        first = {brief: unit for unit, brief in reversed(self._numbers.items())}
        for unit, brief in self._numbers.items():
            if brief == number:
                yield unit, unit + other - number if abs(other - number) <= 1 else first[other]

    def work(self, step: FakeStep, phases: Collection[str]) -> Amount:
        """Return what a whole step computes in these phases."""
        everywhere = [Segment(*each) for each in itertools.product(phases, self._numbers, (False, True))]
        return sum((step.work.get(self._brief(segment), Amount()) for segment in everywhere), Amount())

    def _brief(self, segment: Segment) -> Segment:
        """Return the segment that stands for it where units are left out."""
        return dataclasses.replace(segment, unit=self._numbers[segment.unit])
