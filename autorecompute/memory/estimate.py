"""How long a step might take on a machine where none has run: a roofline, and never a measurement of a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.ranges import Bytes, Operations, Rate, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How fast a machine is, at best.

    Attributes:
        name: The card, or ``this machine``.
        source: Where the speeds come from, in words.
        is_measured: Whether they were measured here; else they are a manufacturer's.
        operations_per_second: Floating point operations of matrix products, by type of numbers.
        bytes_per_second: What its memory reads and writes.
        memory_bytes: How much of it there is; ``None`` where nobody said.
    """

    name: str
    source: str
    is_measured: bool
    operations_per_second: dict[str, Rate] = field(hash=False)
    bytes_per_second: Rate
    memory_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a step computes, and the time that this takes at least on a machine.

    Every operator takes as long as its operations at the machine's speed, or as reading its arguments and writing its
    results, whichever is longer. Nothing is added for what a kernel does not reach of these speeds, or for Python.

    Attributes:
        machine: The machine.
        operations: Floating point operations of a step, those that are made again among them.
        moved_bytes: What its operators read and write.
        operations_again: Those of them that recompute adds.
        moved_bytes_again: Those of them that recompute adds.
        seconds: What a step takes.
    """

    machine: Machine
    operations: Operations
    moved_bytes: Operations
    operations_again: Operations
    moved_bytes_again: Operations
    seconds: Seconds
