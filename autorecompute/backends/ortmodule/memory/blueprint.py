"""Blueprint of a step: its operations and allocations in order, as profiled and as written to a study."""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.memory import Operation, Phase, StepProfile

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from autorecompute.memory import Tensor
    from autorecompute.plans import Config


def settle_durations(profiles: Sequence[StepProfile]) -> list[StepProfile]:
    """Return the same steps, with the time that operations of one form took as a rule: the lower median of all of them.

    A profile times each operation once. On a busy machine one may lose its core meanwhile, and take a hundred times as
    long as the same operation of the next layer. Like are operations of one kind that read and make the same sizes.
    """
    seconds = defaultdict(list)
    forms = [_forms(profile) for profile in profiles]
    for profile, own in zip(profiles, forms, strict=True):
        for operation, form in zip(profile.operations, own, strict=True):
            seconds[form].append(operation.seconds)
    usual = {form: statistics.median_low(found) for form, found in seconds.items()}
    return [
        replace(
            profile,
            operations=tuple(
                replace(operation, seconds=usual[form]) for operation, form in zip(profile.operations, own, strict=True)
            ),
        )
        for profile, own in zip(profiles, forms, strict=True)
    ]


def _forms(profile: StepProfile) -> list[Hashable]:
    """Return the form of each operation: its kind and the sizes of its inputs and outputs."""
    sizes = {tensor.name: (tensor.shape, tensor.element_bytes) for tensor in profile.tensors}
    found: list[Hashable] = []
    for operation in profile.operations:
        if operation.shares and operation.reads[0] in sizes:
            # Its first result is a view, which is no tensor of its own.
            sizes.setdefault(operation.makes[0], sizes[operation.reads[0]])
        reads, makes = (tuple(map(sizes.get, names)) for names in (operation.reads, operation.makes))
        found.append((operation.operator, reads, makes))
    return found


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
    """Read off which operations a config repeats, from steps without recompute and with all plans on."""
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
    """Return the operation, and those that have to run to have its inputs again."""
    seen, todo = {start.key: start}, [start]
    while todo:
        for value in todo.pop().reads:
            source = maker.get(value)
            if source is not None and source.key not in seen and source.key not in stops:
                seen[source.key] = source
                todo.append(source)
    return seen


COPY = "_recompute"  # ending of the name of a recomputed value


def write_out(blueprint: Blueprint, config: Config) -> StepProfile:
    """Return the step of a config that recomputes something, at the profiled dimensions."""
    again = {op.key for on in config.choices for nodes in blueprint.subgraphs.get(on.site, ()) for op in nodes}
    written: list[Operation] = []
    done: set[str] = set()

    def read(value: str, exits: Collection[str]) -> str:
        """Return the name to read the value under: that of its copy where a wanted operation makes one."""
        source = blueprint.maker.get(value)
        if source is None or source.key not in again or source.key not in exits:
            return value
        repeat(source)
        return value + COPY

    def repeat(operation: Operation) -> None:
        if operation.key in done:
            return
        done.add(operation.key)
        # What a copy reads need not be an exit: anything that runs once more is read from its copy.
        reads = tuple(read(value, again) for value in operation.reads)
        makes = tuple(value + COPY for value in operation.makes)
        written.append(replace(operation, reads=reads, makes=makes, phase=Phase.RECOMPUTE, repeats=operation.key))

    for position, operation in enumerate(blueprint.operations):
        exits = blueprint.exits if blueprint.is_backward(position) else ()
        reads = tuple(read(value, exits) for value in operation.reads)
        written.append(replace(operation, reads=reads))
    return StepProfile(
        operations=tuple(written),
        tensors=tuple(_follow(written, blueprint.plain)),
        backward=blueprint.backward,
        dims=blueprint.plain.dims,
    )


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
