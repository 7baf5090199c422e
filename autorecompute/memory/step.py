"""One profiled training step: what ran, in which order, and which tensors lived from where to where."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH
from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(enum.StrEnum):
    """What an operation of a training step is for."""

    FORWARD = "forward"
    LOSS = "loss"
    """The loss and its gradient, and what PyTorch does between the two."""
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    """An operation of the forward pass, done once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One node of the training graph, as it ran.

    Attributes:
        name: The training system's name of it.
        operator: What it computes: ``Gelu``.
        phase: What it is for.
        seconds: Wall time of its kernel.
        reads: Names of the values that it reads.
        makes: Names of the values that it makes.
        shares: Whether its first result lies in the memory of the first value that it reads.
        repeats: Name of the first value that it makes once more; empty for all other operations.
    """

    name: str
    operator: str
    phase: Phase
    seconds: float
    reads: tuple[str, ...] = ()
    makes: tuple[str, ...] = ()
    shares: bool = False
    repeats: str = ""

    @property
    def key(self) -> str:
        """What tells it from all others of a step: the first value it makes. Names occur several times."""
        return self.makes[0] if self.makes else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A piece of memory that an operation makes, under all the names that share it.

    Attributes:
        name: The training system's name of it.
        shape: Its sizes, as expressions over the symbolic dimensions of the model's inputs.
        element_bytes: Bytes of one element.
        first: Position of the operation that makes it.
        last: Position of the last operation that reads it, or of the step's end where it outlives the step.
    """

    name: str
    shape: tuple[str, ...]
    element_bytes: int
    first: int
    last: int

    def bytes_at(self, dims: Mapping[str, int]) -> int:
        """Its size at these dimensions.

        Raises:
            KeyError: it depends on a dimension that is not among them.
        """
        return math.prod(_size(expression, dims) for expression in self.shape) * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """What was seen of one training step.

    Attributes:
        operations: All that ran, in order.
        tensors: All that they made.
        backward: Position of the first operation after the forward pass.
        dims: Symbolic dimensions of the model's inputs in the profiled step.
    """

    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...]
    backward: int
    dims: dict[str, int]

    def phase_of(self, tensor: Tensor) -> Phase:
        """What the operation that made the tensor was for."""
        return self.operations[tensor.first].phase

    def is_stashed(self, tensor: Tensor) -> bool:
        """Whether the forward pass made the tensor, and it is still held in the backward pass."""
        return tensor.first < self.backward <= tensor.last


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfiles:
    """One profiled step of each of several configs, all at the same small dimensions.

    Attributes:
        peak_bytes: Peak of the process in a step without recompute, as the meter saw it at those dimensions.
        held_bytes: What it held before that step.
        profiles: The profiled step of each config; one without recompute is among them.
    """

    peak_bytes: int
    held_bytes: int
    profiles: dict[Config, StepProfile]

    @property
    def batch(self) -> int | None:
        """Samples a forward of the profiled steps."""
        return self.profiles[Config()].dims.get(BATCH)


def _size(expression: str, dims: Mapping[str, int]) -> int:
    if expression.isdecimal():
        return int(expression)
    if expression in dims:
        return dims[expression]
    return _evaluate(expression, tuple(sorted(dims.items())))


@functools.lru_cache(maxsize=4096)
def _evaluate(expression: str, dims: tuple[tuple[str, int], ...]) -> int:
    size = evaluate(expression, dict(dims))
    if size is None:
        raise KeyError(expression)
    return size
