"""The step of a config that was never profiled, written out operation by operation.

What :class:`OrtSimulator` adds up for thousands of configs is written out here for one, to be looked
at: what runs once more stands just before the first operation that reads its copy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.memory.step import Phase, StepProfile

if TYPE_CHECKING:
    from autorecompute.backends.ortmodule.memory.blueprint import Blueprint
    from autorecompute.memory.step import Operation, Tensor
    from autorecompute.plans import Config

COPY = "_recompute"
"""What the name of a value that was made once more ends in."""


def write_out(blueprint: Blueprint, config: Config) -> StepProfile:
    """Return the step of a config that recomputes something, at the profiled dimensions."""
    again = {op.key for on in config.choices for nodes in blueprint.subgraphs.get(on.site, ()) for op in nodes}
    operations = _Writer(blueprint, again).write()
    return StepProfile(
        operations=tuple(operations),
        tensors=tuple(_follow(operations, blueprint.plain)),
        backward=blueprint.backward,
        dims=blueprint.plain.dims,
    )


class _Writer:
    """Writes the operations in the order in which they run.

    Args:
        blueprint: The step.
        again: Keys of the operations that run once more.
    """

    def __init__(self, blueprint: Blueprint, again: set[str]) -> None:
        self._blueprint, self._again = blueprint, again
        self._done: set[str] = set()
        self._written: list[Operation] = []

    def write(self) -> list[Operation]:
        for position, operation in enumerate(self._blueprint.operations):
            exits = self._blueprint.exits if self._blueprint.is_backward(position) else frozenset()
            reads = tuple(self._read(value, exits) for value in operation.reads)
            self._written.append(replace(operation, reads=reads))
        return self._written

    def _read(self, value: str, exits: frozenset[str]) -> str:
        """Return the name to read the value under: that of its copy where a wanted operation makes one."""
        source = self._blueprint.maker.get(value)
        if source is None or source.key not in self._again or source.key not in exits:
            return value
        self._repeat(source)
        return value + COPY

    def _repeat(self, operation: Operation) -> None:
        if operation.key in self._done:
            return
        self._done.add(operation.key)
        # What a copy reads need not be an exit: anything that runs once more is read from its copy.
        reads = tuple(self._read(value, frozenset(self._again)) for value in operation.reads)
        makes = tuple(value + COPY for value in operation.makes)
        copy = replace(operation, reads=reads, makes=makes, phase=Phase.RECOMPUTE, repeats=operation.key)
        self._written.append(copy)


def _follow(operations: list[Operation], plain: StepProfile) -> list[Tensor]:
    """Return the tensors, each from the operation that makes it to the last that reads it; one nobody reads stays."""
    known = {tensor.name: tensor for tensor in plain.tensors}
    outlives = {tensor.name for tensor in plain.tensors if tensor.last >= len(plain.operations)}
    end = len(operations)
    root: dict[str, str] = {}
    firsts: dict[str, int] = {}
    lasts: dict[str, int] = {}
    for position, operation in enumerate(operations):
        lasts |= {root.get(value, value): position for value in operation.reads}
        if operation.shares:
            root[operation.makes[0]] = root.get(operation.reads[0], operation.reads[0])
        firsts |= {value: position for value in operation.makes if value not in root}
    return [
        replace(tensor, name=name, first=first, last=end if name in outlives else lasts.get(name, end))
        for name, first in firsts.items()
        if (tensor := known.get(name.removesuffix(COPY))) is not None
    ]
