"""Simulates which buffers are alive when some of them are recomputed."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.memory import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autorecompute.backends.ortmodule.memory.blueprint import Blueprint
    from autorecompute.memory import Operation
    from autorecompute.plans import Choice


UNREAD = -1

Own = tuple[int, ...] | None
"""Indices of the operations that have to run once more for a copy in memory of its own to be read; ``None`` where there
is no such copy."""


@dataclass(slots=True)
class _Tensor:
    """A piece of memory.

    Attributes:
        size: Bytes.
        first: When it is made.
        last: When it is read last for sure.
        copier: Index of the operation that makes a copy of it when it runs once more; ``None`` where none does.
        by_step: Reads by the step itself of the tensor or a copy: the moment of each.
        by_copies: Those by operations that run once more: the index of each.
    """

    size: int
    first: int
    last: int
    copier: int | None
    by_step: list[tuple[int, Own]] = field(default_factory=list)
    by_copies: list[tuple[int, Own]] = field(default_factory=list)

    @property
    def end_depends(self) -> bool:
        """Tell whether its end depends on the config."""
        return bool(self.by_step or self.by_copies)


class OrtSimulator(Simulator):
    """A blueprint at some dimensions, with a column for each choice that can be on.

    What does not depend on the config is added up once. Time is cut into spans, at every moment at which something may
    begin or end that does depend on it; of the rest, only the most that it takes in each span is kept.
    """

    def __init__(self, blueprint: Blueprint, dims: Mapping[str, int], choices: Sequence[Choice]) -> None:
        super().__init__(choices, [1] * len(choices))  # plans do not count here, and nothing but kernels runs
        self._blueprint = blueprint
        self._index = {op.key: index for index, op in enumerate(blueprint.repeatable)}
        self._covers = np.zeros((len(choices), len(self._index)), dtype=np.float32)
        for choice, covered in zip(choices, self._covers, strict=True):
            covered[[self._index[op.key] for nodes in blueprint.subgraphs.get(choice.site, ()) for op in nodes]] = 1
        self._seconds = np.array([op.seconds for op in blueprint.repeatable])
        self._step_seconds = math.fsum(op.seconds for op in blueprint.plain.operations)
        self._end = 2 * len(blueprint.operations) + 1
        self._after = {op.key for op in blueprint.operations[blueprint.backward :]}
        self._tensors = self._make_tensors({**blueprint.plain.dims, **dims})
        self._note_reads()
        self._wanted = [self._first_wanted(op) for op in blueprint.repeatable]
        constant = self._accumulate_constant()
        cuts = self._find_cuts()
        self._most = np.maximum.reduceat(constant, cuts).astype(np.float32)
        self._count_in_spans(np.searchsorted(cuts, np.arange(self._end + 1), side="right") - 1)
        self._stash = constant[2 * blueprint.backward]

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # Which operations run once more, of shape [repeatable, configs].
        repeats = np.ascontiguousarray((switches.astype(np.float32) @ self._covers > 0).T)
        share = self._seconds @ repeats / self._step_seconds if self._step_seconds else np.zeros(len(switches))
        changes = self._find_changes(repeats)
        peak = np.zeros(repeats.shape[1], dtype=np.float32)
        live = np.zeros_like(peak)
        # Span by span: numpy's own sums along the first axis jump through memory, and take five times as long.
        for number, most in enumerate(self._most):
            live += changes[number]
            if number == self._backward:
                stash = live + self._stash
            np.maximum(peak, live + most, out=peak)
        return peak, stash, share

    def _make_tensors(self, dims: Mapping[str, int]) -> dict[str, _Tensor]:
        plain = self._blueprint.plain
        sizes = {tensor.name: tensor.bytes_at(dims) for tensor in plain.tensors}
        outlives = {tensor.name for tensor in plain.tensors if tensor.last >= len(plain.operations)}
        return {
            value: _Tensor(
                size=sizes[value],
                first=2 * position + 1,
                last=self._end if value in outlives else UNREAD,
                copier=self._index.get(op.key),
            )
            for position, op in enumerate(self._blueprint.operations)
            for value in op.makes
            if value in sizes
        }

    def _note_reads(self) -> None:
        blueprint = self._blueprint
        for position, op in enumerate(blueprint.operations):
            for value in op.reads:
                if (tensor := self._tensors.get(self._root(value))) is None:
                    continue
                source = self._source(value)
                if blueprint.is_backward(position) and source.key in blueprint.exits:
                    tensor.by_step.append((2 * position + 1, self._own(source)))
                else:
                    tensor.last = max(tensor.last, 2 * position + 1)
        for index, op in enumerate(blueprint.repeatable):
            for value in op.reads:
                if (tensor := self._tensors.get(self._root(value))) is not None:
                    tensor.by_copies.append((index, self._own(blueprint.maker[value])))

    def _root(self, value: str) -> str:
        """Return the value whose memory this one lies in."""
        maker = self._blueprint.maker
        while (op := maker.get(value)) is not None and op.shares:
            value = op.reads[0]
        return value

    def _source(self, value: str) -> Operation:
        """Return the operation that made the value, before backward gave it other shapes."""
        op = self._blueprint.maker[value]
        while op.shares and op.key in self._after:
            op = self._blueprint.maker[op.reads[0]]
        return op

    def _own(self, source: Operation | None) -> Own:
        """Return all that has to run once more before a copy of what this operation made has memory of its own."""
        path: tuple[int, ...] = ()
        while source is not None and source.key in self._index:
            path = (*path, self._index[source.key])
            if not source.shares:
                return path
            source = self._blueprint.maker.get(source.reads[0])
        return None

    def _first_wanted(self, op: Operation) -> tuple[int, list[int]]:
        """Return when the step itself first wants a copy from this operation, and which other repeated ones want it."""
        blueprint, made = self._blueprint, set(op.makes)
        by_step = [
            2 * position
            for position, reader in enumerate(blueprint.operations)
            if blueprint.is_backward(position) and op.key in blueprint.exits and made.intersection(reader.reads)
        ]
        by_copies = [index for index, reader in enumerate(blueprint.repeatable) if made.intersection(reader.reads)]
        return min(by_step, default=self._end), by_copies

    def _accumulate_constant(self) -> np.ndarray:
        """Return the bytes alive at each moment, with copies and all ends that depend on the config left out."""
        changes = np.zeros(self._end + 2)
        for tensor in self._tensors.values():
            changes[tensor.first] += tensor.size
            if not tensor.end_depends:
                changes[(self._end if tensor.last == UNREAD else tensor.last) + 1] -= tensor.size
        return np.cumsum(changes[:-1])

    def _find_cuts(self) -> np.ndarray:
        """Return the beginnings of spans."""
        begins = {moment for moment, _ in self._wanted if moment < self._end}
        ends = {moment for tensor in self._tensors.values() for moment, _ in tensor.by_step}
        ends |= {tensor.last for tensor in self._tensors.values() if tensor.end_depends and tensor.last != UNREAD}
        cuts = {0, 2 * self._blueprint.backward, *begins}
        return np.array(sorted(cuts | {moment + 1 for moment in ends | begins if moment < self._end}))

    def _count_in_spans(self, span: np.ndarray) -> None:
        """Replace moments by spans: what ends in one is gone in the next."""
        self._backward = int(span[2 * self._blueprint.backward])
        self._final = int(span[self._end])
        self._wanted = [(int(span[moment]), copies) for moment, copies in self._wanted]
        self._changing = [
            replace(
                tensor,
                last=int(span[tensor.last]) if tensor.last != UNREAD else UNREAD,
                by_step=[(int(span[moment]), own) for moment, own in tensor.by_step],
            )
            for tensor in self._tensors.values()
            if tensor.end_depends or tensor.copier is not None
        ]

    def _find_changes(self, repeats: np.ndarray) -> np.ndarray:
        """Return the bytes that come and go in each span, of shape ``[spans, configs]``."""
        firsts = self._find_firsts(repeats)
        changes = np.zeros((len(self._most) + 1, repeats.shape[1]), dtype=np.float32)
        for tensor in self._changing:
            if tensor.end_depends:
                last = self._find_last(
                    tensor, tensor.last, repeats, firsts, lambda own: True if own is None else ~_has_all(own, repeats)
                )
                _add(changes, last + 1, -tensor.size)
            if tensor.copier is not None:
                last = self._find_last(
                    tensor, UNREAD, repeats, firsts, lambda own: False if own is None else _has_all(own, repeats)
                )
                first = firsts[tensor.copier]
                # What comes and goes while a chain runs is no more than its widest operation: it is left out.
                size = tensor.size * (repeats[tensor.copier] & (last > first)).astype(np.float32)
                _add(changes, first, size)
                _add(changes, last + 1, -size)
        return changes

    def _find_firsts(self, repeats: np.ndarray) -> np.ndarray:
        """Return the span in which each operation runs once more: just before the first that reads its copy."""
        firsts = np.empty(repeats.shape, dtype=np.int32)
        for index in reversed(range(len(repeats))):
            by_step, by_copies = self._wanted[index]
            firsts[index] = by_step
            for reader in by_copies:
                np.minimum(firsts[index], firsts[reader], out=firsts[index], where=repeats[reader])
        return firsts

    def _find_last(
        self,
        tensor: _Tensor,
        least: int,
        repeats: np.ndarray,
        firsts: np.ndarray,
        counts: Callable[[Own], np.ndarray | bool],
    ) -> np.ndarray:
        """Return the span of the last read, among those that count in a config."""
        last = np.full(repeats.shape[1], least, dtype=np.int32)
        for moment, own in tensor.by_step:
            if (flags := counts(own)) is not False:
                np.maximum(last, moment, out=last, where=flags)
        for reader, own in tensor.by_copies:
            if (flags := counts(own)) is not False:
                np.maximum(last, firsts[reader], out=last, where=flags & repeats[reader])
        last[last == UNREAD] = self._final
        return last


def _add(changes: np.ndarray, spans: np.ndarray, size: np.ndarray | float) -> None:
    """Add a size in one span of each config."""
    places = spans * np.int32(len(spans))
    places += np.arange(len(spans), dtype=np.int32)
    changes.ravel()[places] += size


def _has_all(indices: tuple[int, ...], repeats: np.ndarray) -> np.ndarray:
    """Return in which configs all of these operations run once more."""
    flags: np.ndarray = repeats[indices[0]]
    for index in indices[1:]:
        flags = flags & repeats[index]
    return flags
