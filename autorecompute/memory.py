"""Profiles of single training steps, models of the memory that steps hold, and the forecasts that these give."""

from __future__ import annotations

import abc
import bisect
import enum
import functools
import itertools
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import numpy as np

from autorecompute.plans import Config, Plan, Space
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.ranges import (
    LARGEST,
    PRIVATE,
    Bytes,
    Count,
    Operations,
    PositiveBytes,
    PositiveCount,
    Rate,
    Ratio,
    Seconds,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.plans import Choice


MOST_DIMENSIONS = 64  # as many as a tensor of PyTorch can have

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
    last: Annotated[Count, "Position of the last operation that reads it; the step's end where it outlives the step."]
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
        bool, "True if its operations are whole passes of modules, its tensors sums of what each keeps."
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

    Without recompute is among them, and both amounts are of the process in a step without.
    """

    peak_bytes: PositiveBytes
    held_bytes: Bytes
    profiles: dict[Config, StepProfile]


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
            raise ValueError(f"has the operation '{operation.name[:80]}', which cannot run where it stands")
        made.update(operation.makes)


def _require_sizes(profile: StepProfile) -> None:
    count = len(profile.operations)
    texts = {expression for tensor in profile.tensors for expression in tensor.shape if not expression.isdecimal()}
    if sum(map(len, texts)) > LONGEST_SIZES:
        raise ValueError(f"has sizes that take more than {LONGEST_SIZES} letters to write")
    for tensor in profile.tensors:
        if tensor.first >= count or not tensor.first <= tensor.last <= count:
            raise ValueError(
                f"has the tensor '{tensor.name[:80]}' from operation {tensor.first} to {tensor.last} of {count}"
            )
        if len(tensor.shape) > MOST_DIMENSIONS:
            raise ValueError(f"has the tensor '{tensor.name[:80]}' of {len(tensor.shape)} dimensions")
        _require_bytes(tensor, profile.dims)


def _require_bytes(tensor: Tensor, dims: Mapping[str, int]) -> None:
    size = tensor.element_bytes
    for expression in tensor.shape:
        try:
            factor = _size(expression, dims)
        except (KeyError, ValueError) as error:
            raise ValueError(f"has a tensor of the size '{expression[:80]}', which has no value there") from error
        size *= factor
        if factor < 0 or size > LARGEST:
            raise ValueError(f"has the tensor '{tensor.name[:80]}' of an impossible size")


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


MOST_PIECES = 10  # so many tensors tell what a peak is made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A profiled step at some dimensions: bytes of its tensors, and of all that are alive during each operation."""

    profile: StepProfile
    sizes: tuple[int, ...]
    live_bytes: tuple[int, ...]

    @property
    def peak(self) -> int:
        """Return the position of the operation during which most is alive; the first of several."""
        return self.live_bytes.index(self.peak_bytes)

    @property
    def peak_bytes(self) -> int:
        """Return the bytes alive at the peak, beyond what is held before the step."""
        return max(self.live_bytes)

    @property
    def stash_bytes(self) -> int:
        """Return the bytes that the forward pass leaves for the backward pass."""
        return sum(size for tensor, size in self._sized() if self.profile.is_stashed(tensor))

    def largest_at_peak(self) -> list[tuple[Tensor, int]]:
        """Return the largest tensors at the peak, with their bytes, the largest first."""
        alive = [(tensor, size) for tensor, size in self._sized() if tensor.first <= self.peak <= tensor.last]
        return sorted(alive, key=lambda pair: (-pair[1], pair[0].name))[:MOST_PIECES]

    def recomputed(self) -> tuple[list[Operation], list[Operation]]:
        """Return the operations that run once more up to the peak, and those that do after it."""
        operations, behind = self.profile.operations, self.peak + 1
        before, after = (
            [operation for operation in part if operation.phase is Phase.RECOMPUTE]
            for part in (operations[:behind], operations[behind:])
        )
        return before, after

    def live_by_phase(self) -> dict[Phase, tuple[int, ...]]:
        """Return the bytes alive during each operation, by what they were made in; they add up to ``live_bytes``."""
        made: dict[Phase, list[tuple[Tensor, int]]] = {phase: [] for phase in Phase}
        for tensor, size in self._sized():
            made[self.profile.phase_of(tensor)].append((tensor, size))
        return {phase: _accumulate(tensors, len(self.live_bytes)) for phase, tensors in made.items()}

    def live_by_layer(self) -> dict[str, tuple[int, ...]]:
        """Return the bytes alive during each operation that each layer's forward pass made, in the order of layers.

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
    """Return the timeline of a profiled step, at other dimensions than its own where they are given.

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
class Machine:
    """Peak speeds of a machine."""

    name: Annotated[str, "The card, or ``this machine``."]
    source: Annotated[str, "Where the speeds come from, in words."]
    is_measured: Annotated[bool, "Whether they were measured here; else they are a manufacturer's."]
    operations_per_second: Annotated[dict[str, Rate], "FLOP/s of matrix products, by type."] = field(hash=False)
    bytes_per_second: Annotated[Rate, "What its memory reads and writes."]
    memory_bytes: Annotated[Bytes | None, "How much of it there is; ``None`` where nobody said."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Work of a step, and its least time on a machine. No step was run there.

    Every operator takes as long as its operations at the machine's speed, or as reading its arguments and writing its
    results, whichever is longer. Nothing is added for what a kernel does not reach of these speeds, or for Python.
    """

    step_seconds: Annotated[Seconds, "Time of its operators at the machine's full speeds; a real step takes longer."]
    flops: Annotated[Operations, "Floating point operations of a step, those of recompute among them."]
    moved_bytes: Annotated[Operations, "Bytes that its operators read and write."]
    flops_again: Annotated[Operations, "Those of them that recompute adds."]
    moved_bytes_again: Annotated[Operations, "Those of them that recompute adds."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """The bytes of tensors on one rank when most are alive."""

    config: Annotated[Config, "What is recomputed."]
    ranks: Annotated[PositiveCount, "How many ranks train together."]
    parameter_bytes: Annotated[Bytes, "The rank's parameters, or its shards of them, and buffers of the model."]
    gradient_bytes: Annotated[Bytes, "Gradients, before and after they are reduced over ranks."]
    state_bytes: Annotated[Bytes, "The optimizer's state."]
    gathered_bytes: Annotated[Bytes, "Parameters gathered from all ranks, and buffers of collectives."]
    activation_bytes: Annotated[Bytes, "All else: activations, what is made for a moment, and the batch."]

    @property
    def peak_bytes(self) -> int:
        """Return all of it."""
        held = self.parameter_bytes + self.gradient_bytes + self.state_bytes
        return held + self.gathered_bytes + self.activation_bytes


STEP_ERROR = 0.005  # error of the added time of one choice whose kernels were timed or counted, as a share of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of a config at some dimensions; nothing here was measured there.

    Attributes:
        error_share: Share of the peak by which it may be off at worst.
    """

    config: Annotated[Config, PRIVATE]
    peak_bytes: Annotated[Bytes, "Peak of the process."]
    live_bytes: Annotated[Bytes, "Tensors that are alive at the peak."]
    stash_bytes: Annotated[Bytes, "Tensors that the forward pass leaves for the backward pass."]
    error_share: Annotated[float, PRIVATE]
    recompute_share: Annotated[Ratio, "Time of what runs once more, as a share of all kernels of a step without it."]
    allocated_bytes: Annotated[Bytes | None, "Peak of PyTorch's allocator; ``None`` but for presets on a card."] = None
    reserved_bytes: Annotated[Bytes | None, "What it takes from the card; ``None`` but for presets on a card."] = None
    estimate: Annotated[Estimate | None, "Estimate of a step; ``None`` but with ``--fake``, at its dimensions."] = None
    machine: Annotated[Machine | None, PRIVATE] = None
    rank: Annotated[RankPeak | None, "The parts of one rank's peak; ``None`` but for presets with ``--ranks``."] = None

    def is_near(self, limit_bytes: int) -> bool:
        """Tell whether the peak is as near to the limit as forecasts have been wrong, on either side."""
        return abs(self.peak_bytes - limit_bytes) < self.error_share * self.peak_bytes


CHUNK = 4096  # configs that are simulated together: their arrays stay in the processor's cache


@dataclass(frozen=True, slots=True)
class Simulated:
    """Forecasts of configs, an entry for each, as :class:`Forecast` has them for the step's own tensors."""

    peak_bytes: np.ndarray
    stash_bytes: np.ndarray
    recompute_share: np.ndarray


class Simulator(abc.ABC):
    """Simulates thousands of configs at once, at fixed dimensions.

    Args:
        choices: All that can be on, in the order of the columns that :meth:`simulate` takes.
        occurrences: Number of occurrences of each.

    Attributes:
        call_seconds: Seconds that each choice adds to a step beyond its kernels, on at all its occurrences.
        step_error: Standard deviation of a choice's added time, as a share of a step: one each or one for all.
    """

    def __init__(self, choices: Sequence[Choice], occurrences: Sequence[int]) -> None:
        self._choices, self._occurrences = choices, occurrences
        self.call_seconds = np.zeros(len(choices))
        self.step_error: np.ndarray | float = STEP_ERROR

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        table = np.zeros((len(configs), len(self._choices)), dtype=np.float32)
        for row, config in enumerate(configs):
            for column, choice in enumerate(self._choices):
                if (on := next((on for on in config.choices if on.covers(choice)), None)) is not None:
                    table[row, column] = 1.0 if on.count is None else min(on.count / self._occurrences[column], 1.0)
        return table

    def simulate(self, switches: np.ndarray) -> Simulated:
        """Forecast the memory and the recompute of configs.

        Args:
            switches: The share of its occurrences at which each choice is on, of shape ``[configs, choices]``; 0 or 1
                where plans do not count.
        """
        starts = range(0, max(len(switches), 1), CHUNK)
        chunks = [self._simulate(switches[start : start + CHUNK]) for start in starts]
        return Simulated(*(np.concatenate(part) for part in zip(*chunks, strict=True)))

    @abc.abstractmethod
    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the fields of :class:`Simulated` for a few of the configs."""


def covered(switches: np.ndarray, space: Space, choices: Sequence[Choice]) -> np.ndarray:
    """Return the share of its occurrences at which each choice lies inside of what is made again as a whole."""
    covered = np.zeros_like(switches)
    for outer, around in enumerate(choices):
        inside = [at for at, choice in enumerate(choices) if choice.site in space.covers.get(around.site, ())]
        covered[:, inside] = np.maximum(covered[:, inside], switches[:, [outer]])
    most: np.ndarray = np.minimum(covered, switches)
    return most


def undominated(peaks: np.ndarray, costs: np.ndarray) -> list[int]:
    """Return the places that no other beats in both, in bytes and in step time or extra work, the lowest peak first."""
    order = np.lexsort((costs, peaks))
    least = np.minimum.accumulate(np.concatenate([[np.inf], costs[order]]))
    return [int(place) for place in order[least[1:] < least[:-1]]]


class PeakForecaster(abc.ABC):
    """Forecaster of memory for a search that has not measured yet."""

    @property
    @abc.abstractmethod
    def likely_error(self) -> float:
        """Return the share that half of all forecasts were off by less than."""

    @abc.abstractmethod
    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> Simulator:
        """Return a simulator at some dimensions, with a column for each of these choices.

        Raises:
            KeyError: a shape depends on a dimension that is not known.
        """

    @abc.abstractmethod
    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return the bytes that a process needs at its peak beyond its live tensors."""

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:  # noqa: ARG002  (of those that look at configs)
        """Return those of all configs that were looked at, if any were."""
        return []


LARGEST_BATCH = 1 << 20


@dataclass(frozen=True)
class MemoryModel(PeakForecaster):
    """Model that turns small steps into peaks, by a training system's allocator and order of operations."""

    space: Space

    @property
    @abc.abstractmethod
    def dims(self) -> dict[str, int]:
        """Return the dimensions of the profiled steps."""

    @property
    @abc.abstractmethod
    def looked_at(self) -> Collection[Config]:
        """Return the configs that :meth:`forecasts` and :meth:`effects` tell of."""

    @abc.abstractmethod
    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """Return a config's step, at other dimensions than the profiled ones where they are given."""

    @abc.abstractmethod
    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """Forecast a config at these dimensions."""

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:
        """Return all configs that were looked at, those that recompute least first."""
        found = [self.forecast(config, dims) for config in self.looked_at]
        return sorted(found, key=lambda forecast: (forecast.recompute_share, forecast.peak_bytes))

    def effects(self, dims: Mapping[str, int]) -> list[tuple[Plan, Forecast, Forecast | None]]:
        """Return each plan that was looked at alone, the lowest peak first.

        With each come its own forecast, and that of all other plans, ``None`` where those were not looked at.
        """
        known, all_on, effects = self.looked_at, self.space.all_on, []
        for plan in self.space.plans:
            if (alone := Config.of([plan])) in known:
                others = self._others(plan, all_on)
                left_out = None if others is None else self.forecast(others, dims)
                effects.append((plan, self.forecast(alone, dims), left_out))
        return sorted(effects, key=lambda effect: (effect[1].peak_bytes, effect[0].id))

    def _others(self, plan: Plan, all_on: Config) -> Config | None:
        """Return the config of all other plans; ``None`` where that was not looked at."""
        others = all_on.without_plan(plan)
        return others if others in self.looked_at else None

    def largest_batch(self, config: Config, dims: Mapping[str, int], limit_bytes: int) -> int:
        """Return the largest batch whose forecast holds the limit, 0 if none does; every other dimension as given."""
        batches = range(1, LARGEST_BATCH)
        return bisect.bisect_right(
            batches, limit_bytes, key=lambda batch: self.forecast(config, {**dims, BATCH: batch}).peak_bytes
        )

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Return the plan that each tensor depends on, by the name of the tensor, as far as that is known."""
        return {}
