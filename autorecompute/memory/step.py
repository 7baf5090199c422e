"""A profiled step, its timeline, and the chains that recompute makes of it."""

from __future__ import annotations

import enum
import functools
import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.ranges import LARGEST, Bytes, Count, PositiveBytes, PositiveCount, Seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


MOST_DIMENSIONS = 64
"""As many as a tensor of PyTorch can have."""

_LAYER = re.compile(r"(?:^|/)([^/]*[a-zA-Z_][./](?:\d+))(?:/|$)")

HEAD, OPTIMIZER = "the rest of the model and the loss", "the optimizer"
"""Names of the operations in a step by module that are of none of its layers."""

LONGEST_SIZES = 10_000
"""Letters of all sizes of a step that are no plain numbers, each written once. BERT has 50; reading one takes time."""


class Phase(enum.StrEnum):
    """Phase of an operation in a training step."""

    FORWARD = "forward"
    LOSS = "loss"
    """The loss and its gradient, and what PyTorch does between the two."""
    BACKWARD = "backward"
    RECOMPUTE = "recompute"
    """An operation of the forward pass, done once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One node of the training graph, as it ran."""

    name: Annotated[str, "The training system's name of it."]
    operator: Annotated[str, "What it computes: ``Gelu``."]
    phase: Annotated[Phase, "What it is for."]
    seconds: Annotated[Seconds, "Wall time of its kernel."]
    reads: Annotated[tuple[str, ...], "Names of the values that it reads."] = ()
    makes: Annotated[tuple[str, ...], "Names of the values that it makes."] = ()
    shares: Annotated[bool, "Whether its first result lies in the memory of the first value that it reads."] = False
    repeats: Annotated[str, "Name of the first value that it makes once more; empty for all other operations."] = ""

    @property
    def key(self) -> str:
        """Return its key in a step: the first value it makes. Names occur several times."""
        return self.makes[0] if self.makes else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A piece of memory that an operation makes, under all the names that share it."""

    name: Annotated[str, "The training system's name of it."]
    shape: Annotated[tuple[str, ...], "Its sizes, as expressions over the symbolic dimensions of the model's inputs."]
    element_bytes: Annotated[Bytes, "Bytes of one element."]
    first: Annotated[Count, "Position of the operation that makes it."]
    last: Annotated[
        Count, "Position of the last operation that reads it, or of the step's end where it outlives the step."
    ]
    phase: Annotated[Phase | None, "What it is for, where that is not what the operation that makes it is for."] = None

    def bytes_at(self, dims: Mapping[str, int]) -> int:
        """Return its size at these dimensions.

        Raises:
            KeyError: it depends on a dimension that is not among them.
        """
        return math.prod(_size(expression, dims) for expression in self.shape) * self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfile:
    """Profile of one training step.

    Raises:
        ValueError: it cannot have run: an operation reads what is made later, or a tensor has no size.
    """

    operations: Annotated[tuple[Operation, ...], "All that ran, in order."]
    tensors: Annotated[tuple[Tensor, ...], "All that they made."]
    backward: Annotated[Count, "Position of the first operation after the forward pass."]
    dims: Annotated[dict[str, PositiveCount], "Symbolic dimensions of the model's inputs in the profiled step."]
    by_module: Annotated[
        bool, "Whether its operations are whole passes of modules, and its tensors sums of what each of them keeps."
    ] = False

    def __post_init__(self) -> None:
        _require_order(self)
        _require_sizes(self)

    def phase_of(self, tensor: Tensor) -> Phase:
        """Return the tensor's phase: that of the operation that made it, where it has none of its own."""
        return tensor.phase or self.operations[tensor.first].phase

    def layer_of(self, operation: Operation) -> str:
        """Return the repeated block that an operation belongs to: ``h.0``; empty where it is in none.

        By module, an operation is a pass of a block and called by its path, be that ``h.0``, ``0`` or ``layer1``.
        Else the name of its node tells of a numbered one.
        """
        if self.by_module:
            return "" if operation.operator in {HEAD, OPTIMIZER} else operation.operator
        match = _LAYER.search(operation.name)
        return match[1] if match is not None else ""

    def is_stashed(self, tensor: Tensor) -> bool:
        """Tell whether the forward pass made the tensor, and it is still held in the backward pass."""
        return tensor.first < self.backward <= tensor.last


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProfiles:
    """One profiled step of each of several configs, all at the same small dimensions.

    Attributes:
        peak_bytes: Peak of the process in a step without recompute, as the meter saw it at those dimensions.
        held_bytes: What it held before that step.
        profiles: The profiled step of each config; one without recompute is among them.
    """

    peak_bytes: PositiveBytes
    held_bytes: Bytes
    profiles: dict[Config, StepProfile]

    @property
    def batch(self) -> int | None:
        """Sample a forward of the profiled steps."""
        return self.profiles[Config()].dims.get(BATCH)


def _require_order(profile: StepProfile) -> None:
    count = len(profile.operations)
    if not count or profile.backward > count:
        raise ValueError(f"is a step of {count} operations, {profile.backward} of them before the backward pass")
    made: set[str] = set()
    makers = {value for operation in profile.operations for value in operation.makes}
    for operation in profile.operations:
        # What goes round in circles would be followed for ever.
        is_early = any(value in makers and value not in made for value in operation.reads)
        is_again = not made.isdisjoint(operation.makes)
        is_empty = operation.shares and not (operation.reads and operation.makes)
        if is_early or is_again or is_empty:
            raise ValueError(f"has the operation '{_short(operation.name)}', which cannot run where it stands")
        made.update(operation.makes)


def _require_sizes(profile: StepProfile) -> None:
    count = len(profile.operations)
    texts = {expression for tensor in profile.tensors for expression in tensor.shape if not expression.isdecimal()}
    if sum(map(len, texts)) > LONGEST_SIZES:
        raise ValueError(f"has sizes that take more than {LONGEST_SIZES} letters to write")
    for tensor in profile.tensors:
        if tensor.first >= count or not tensor.first <= tensor.last <= count:
            raise ValueError(
                f"has the tensor '{_short(tensor.name)}' from operation {tensor.first} to {tensor.last} of {count}"
            )
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise ValueError(f"has the tensor '{_short(tensor.name)}' of {len(tensor.shape)} dimensions")
        _require_bytes(tensor, profile.dims)


def _require_bytes(tensor: Tensor, dims: Mapping[str, int]) -> None:
    size = tensor.element_bytes
    for expression in tensor.shape:
        try:
            factor = _size(expression, dims)
        except (KeyError, ValueError) as error:
            raise ValueError(f"has a tensor of the size '{_short(expression)}', which has no value there") from error
        size *= factor
        if factor < 0 or size > LARGEST:
            raise ValueError(f"has the tensor '{_short(tensor.name)}' of an impossible size")


def _short(text: str) -> str:
    return text[:80]


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


MOST_PIECES = 10
"""So many tensors tell what a peak is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A profiled step at some dimensions: the bytes of all tensors that are alive during each of its operations.

    Attributes:
        profile: The step.
        sizes: Bytes of each of its tensors.
        live_bytes: Bytes alive during each operation.
    """

    profile: StepProfile
    sizes: tuple[int, ...]
    live_bytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Position of the operation during which most is alive; the first of several."""
        return self.live_bytes.index(self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Bytes alive at the peak, beyond what is held before the step."""
        return max(self.live_bytes)

    @property
    def stash_bytes(self) -> int:
        """Bytes that the forward pass leaves for the backward pass."""
        return sum(size for tensor, size in self._sized() if self.profile.is_stashed(tensor))

    def alive_at(self, position: int) -> list[tuple[Tensor, int]]:
        """Return the tensors that are alive during an operation, with their bytes, the largest first."""
        alive = [(tensor, size) for tensor, size in self._sized() if tensor.first <= position <= tensor.last]
        return sorted(alive, key=lambda pair: (-pair[1], pair[0].name))

    def largest_at_peak(self) -> list[tuple[Tensor, int]]:
        """Return the largest tensors at the peak, with their bytes."""
        return self.alive_at(self.peak)[:MOST_PIECES]

    def live_by_phase(self) -> dict[Phase, tuple[int, ...]]:
        """Bytes alive during each operation, by what they were made in; they add up to ``live_bytes``."""
        return {
            phase: _accumulate(
                [(tensor, size) for tensor, size in self._sized() if self.profile.phase_of(tensor) is phase],
                len(self.live_bytes),
            )
            for phase in Phase
        }

    def live_by_layer(self) -> dict[str, tuple[int, ...]]:
        """Bytes alive during each operation that the forward pass of each layer made, in the order of the layers.

        What it made outside of all layers has the name ''; all add up to what the forward pass made.
        """
        profile = self.profile
        made: dict[str, list[tuple[Tensor, int]]] = {}
        for tensor, size in sorted(self._sized(), key=lambda pair: pair[0].first):
            if profile.phase_of(tensor) is Phase.FORWARD:
                made.setdefault(profile.layer_of(profile.operations[tensor.first]), []).append((tensor, size))
        return {layer: _accumulate(tensors, len(self.live_bytes)) for layer, tensors in made.items()}

    def _sized(self) -> list[tuple[Tensor, int]]:
        return list(zip(self.profile.tensors, self.sizes, strict=True))


def trace(profile: StepProfile, dims: Mapping[str, int] | None = None) -> Timeline:
    """Return the timeline of a profiled step.

    Args:
        profile: The step.
        dims: Dimensions to see it at instead of its own: every tensor has its symbolic shape.

    Raises:
        KeyError: a shape depends on a dimension that is not among them.
    """
    dims = {**profile.dims, **(dims or {})}
    sizes = tuple(tensor.bytes_at(dims) for tensor in profile.tensors)
    live = _accumulate(list(zip(profile.tensors, sizes, strict=True)), len(profile.operations))
    return Timeline(profile=profile, sizes=sizes, live_bytes=live)


def _accumulate(tensors: list[tuple[Tensor, int]], length: int) -> tuple[int, ...]:
    changes = [0] * (length + 1)
    for tensor, size in tensors:
        changes[tensor.first] += size
        changes[min(tensor.last, length - 1) + 1] -= size
    return tuple(itertools.accumulate(changes[:length]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Recompute before a step reaches its peak.

    Attributes:
        operations: What was recomputed up to the peak, in order.
        recomputed: How many operations the whole step recomputes.
        waiting_bytes: Bytes of recomputed tensors that are alive at the peak.
    """

    operations: tuple[Operation, ...]
    recomputed: int
    waiting_bytes: int

    @property
    def share_of_work(self) -> float:
        """Share of the step's recompute that is done before its peak, from 0 to 1."""
        return len(self.operations) / self.recomputed if self.recomputed else 0.0


def find_chain(timeline: Timeline) -> Chain:
    """Return the step's recompute up to its peak; empty where it recomputes nothing before it."""
    profile = timeline.profile
    recomputed = [
        (position, operation)
        for position, operation in enumerate(profile.operations)
        if operation.phase is Phase.RECOMPUTE
    ]
    waiting = timeline.live_by_phase()[Phase.RECOMPUTE][timeline.peak]
    return Chain(
        operations=tuple(operation for position, operation in recomputed if position <= timeline.peak),
        recomputed=len(recomputed),
        waiting_bytes=waiting,
    )
