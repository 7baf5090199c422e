"""What a training step would be under any config, taken from two profiled ones: with no recompute, and with all."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.memory.durations import settle_durations
from autorecompute.memory.step import Operation, Phase, StepProfile

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """A step whose recompute is not chosen yet.

    Every operation that can run once more belongs to the subgraph of one kept activation or of several. A subgraph ends
    in an operation whose results backward reads (its *exit*), and reaches back to what is kept anyway: the exit of
    another subgraph, or a value that nothing can recompute.

    Attributes:
        plain: The profiled step without recompute.
        operations: All operations but the repeated ones, in the order in which they run where anything is recomputed:
            ORT plans another order without.
        backward: Position of the first of them after the forward pass: the hand-over to PyTorch, which reads what the
            forward pass made and never a copy.
        repeatable: Those that can run once more, in order.
        subgraphs: The operations of each subgraph by the words that a row has for it, exits last.
    """

    plain: StepProfile
    operations: tuple[Operation, ...]
    backward: int
    repeatable: tuple[Operation, ...]
    subgraphs: dict[str, tuple[tuple[Operation, ...], ...]]

    @functools.cached_property
    def maker(self) -> dict[str, Operation]:
        """Return the operation that makes each value."""
        return {value: operation for operation in self.operations for value in operation.makes}

    @functools.cached_property
    def exits(self) -> frozenset[str]:
        """Keys of the operations in which subgraphs end: what they made is read from the copy, once there is one."""
        return frozenset(nodes[-1].key for group in self.subgraphs.values() for nodes in group)

    def is_backward(self, position: int) -> bool:
        """Tell whether the operation reads what was made once more, rather than what was made first."""
        return position > self.backward


def draw_blueprint(plain: StepProfile, full: StepProfile) -> Blueprint:
    """Read off which operations a config repeats.

    Args:
        plain: A step without recompute.
        full: A step of the same graph with all plans on.
    """
    plain, full = settle_durations((plain, full))
    known = {operation.key: operation for operation in plain.operations}
    again = {operation.repeats for operation in full.operations if operation.phase is Phase.RECOMPUTE}
    operations = tuple(known[op.key] for op in full.operations if op.phase is not Phase.RECOMPUTE and op.key in known)
    repeatable = tuple(op for op in operations[: full.backward] if op.key in again)
    kept = {value for op in operations[full.backward + 1 :] for value in op.reads}
    exits = [op for op in repeatable if kept.intersection(op.makes)]
    return Blueprint(
        plain=plain,
        operations=operations,
        backward=full.backward,
        repeatable=repeatable,
        subgraphs=_group(exits, repeatable),
    )


def _group(exits: list[Operation], repeatable: tuple[Operation, ...]) -> dict[str, tuple[tuple[Operation, ...], ...]]:
    maker = {value: op for op in repeatable for value in op.makes}
    stops = {op.key for op in exits}
    order = {op.key: place for place, op in enumerate(repeatable)}
    found = defaultdict(list)
    for op in exits:
        nodes = sorted(_reach(op, maker, stops).values(), key=lambda node: order[node.key])
        found["".join(f"{node.operator}+" for node in nodes)].append(tuple(nodes))
    return {words: tuple(group) for words, group in found.items()}


def _reach(start: Operation, maker: Mapping[str, Operation], stops: set[str]) -> dict[str, Operation]:
    """Return the operation, and those that it takes to have its inputs again."""
    seen, todo = {start.key: start}, [start]
    while todo:
        for value in todo.pop().reads:
            source = maker.get(value)
            if source is not None and source.key not in seen and source.key not in stops:
                seen[source.key] = source
                todo.append(source)
    return seen
