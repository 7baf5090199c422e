"""Interface of a model of memory, with the forecasts that it gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

import numpy as np

from autorecompute.plans import Config, Plan
from autorecompute.plans.savings import BATCH
from autorecompute.ranges import Bytes, Operations, PositiveCount, Rate, Seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.memory.step import Timeline
    from autorecompute.plans import Choice, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Peak speeds of a machine."""

    name: Annotated[str, "The card, or ``this machine``."]
    source: Annotated[str, "Where the speeds come from, in words."]
    is_measured: Annotated[bool, "Whether they were measured here; else they are a manufacturer's."]
    operations_per_second: Annotated[
        dict[str, Rate], "Floating point operations of matrix products, by type of numbers."
    ] = field(hash=False)
    bytes_per_second: Annotated[Rate, "What its memory reads and writes."]
    memory_bytes: Annotated[Bytes | None, "How much of it there is; ``None`` where nobody said."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Work of a step, and its least time on a machine.

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


STEP_ERROR = 0.005
"""Error of the added time of one choice whose kernels were timed or counted, as a share of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Forecast of a config at some dimensions; nothing here was measured there.

    Attributes:
        config: What is recomputed.
        peak_bytes: Memory of the process at its highest during a step.
        live_bytes: Tensors of the step that are alive then.
        stash_bytes: What the forward pass leaves for the backward pass.
        error_share: By which share of it the peak may be off at worst.
        recompute_share: Time of the kernels that run once more, as a share of all kernels of a step without recompute.
        allocated_bytes: What PyTorch's allocator would have handed out on a card at the peak; ``None`` where no card
            was asked for, or no whole step was run with the config.
        reserved_bytes: What it would have taken from the card.
        estimate: What a step computes, and how long that takes at least; ``None`` where nobody asked, or at other
            dimensions than those of the steps that were looked at.
        rank: What the peak of one rank is made of; ``None`` where none of several was asked for, or no step was run
            with the config at these dimensions.
    """

    config: Config
    peak_bytes: int
    live_bytes: int
    stash_bytes: int
    error_share: float
    recompute_share: float
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    estimate: Estimate | None = None
    rank: RankPeak | None = None

    def is_near(self, limit_bytes: int) -> bool:
        """Tell whether the peak is as near to the limit as forecasts have been wrong.

        Which side it is on is not sure.
        """
        return abs(self.peak_bytes - limit_bytes) < self.error_share * self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of one plan, beside all others on and beside all others off.

    Attributes:
        plan: The plan.
        alone: The forecast with nothing else on.
        left_out: The forecast with everything else on; ``None`` where that was not profiled.
    """

    plan: Plan
    alone: Forecast
    left_out: Forecast | None


@dataclass(frozen=True, slots=True)
class Simulated:
    """Forecasts of configs, an entry for each.

    Attributes:
        peak_bytes: Bytes alive at the peak, of the step's own tensors.
        stash_bytes: Bytes that the forward pass leaves for the backward pass.
        recompute_share: Time of the kernels that run once more, as a share of all kernels without recompute.
    """

    peak_bytes: np.ndarray
    stash_bytes: np.ndarray
    recompute_share: np.ndarray


class Simulator(Protocol):
    """Simulates thousands of configs at once, at fixed dimensions."""

    @property
    def call_seconds(self) -> np.ndarray:
        """Return the seconds that each choice adds to a step beyond its kernels, on at all its occurrences."""
        ...

    @property
    def step_error(self) -> np.ndarray | float:
        """Return the standard deviation of a choice's added time, as a share of a step: one each or one for all."""
        ...

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        ...

    def simulate(self, switches: np.ndarray) -> Simulated:
        """Forecast the memory and the recompute of configs.

        Args:
            switches: At which share of its occurrences each choice is on, of shape ``[configs, choices]``; 0 or 1
                where plans do not count.
        """
        ...


class PeakForecaster(Protocol):
    """Forecaster of memory for a search that has not measured yet."""

    @property
    def likely_error(self) -> float:
        """Return the share that half of all forecasts were off by less than."""
        ...

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> Simulator:
        """Return a simulator at some dimensions, with a column for each of these choices.

        Raises:
            KeyError: a shape depends on a dimension that is not known.
        """
        ...

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return the bytes that a process needs at its peak beyond its live tensors."""
        ...

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:
        """Return all configs that were looked at, those that recompute least first."""
        ...


class MemoryModel(PeakForecaster, Protocol):
    """Model that turns small steps into peaks, by a training system's allocator and order of operations."""

    @property
    def space(self) -> Space:
        """Return the plans of the model."""
        ...

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of the profiled steps."""
        ...

    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """Return a config's step, at other dimensions than the profiled ones where they are given.

        Raises:
            KeyError: a shape depends on a dimension that is not known.
        """
        ...

    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """Forecast a config at these dimensions."""
        ...

    def effects(self, dims: Mapping[str, int]) -> list[Effect]:
        """Return the effect of each plan that was looked at alone, the largest saving at the peak first."""
        ...

    def largest_batch(self, config: Config, dims: Mapping[str, int], limit_bytes: int) -> int:
        """Return the largest batch whose forecast holds the limit, 0 if none does; every other dimension as given."""
        ...

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Return the plan that each tensor depends on, by the name of the tensor, as far as that is known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakView:
    """A model of memory, and how to look at it.

    Attributes:
        model: The profiled steps, and what follows from them.
        config: What to hold against the step without recompute; one of the configs that were looked at.
        dims: The dimensions to see everything at.
        limit_bytes: What the peak may reach; ``None`` where nobody asked.
        command: A command that measures, to paste.
        batches: Further batches to see the presets at.
        frontier: Forecasts of the configs that no other beats in both peak and extra work, the lowest peak first; empty
            where only profiled configs can be forecast.
    """

    model: MemoryModel
    config: Config
    dims: dict[str, int]
    limit_bytes: int | None = None
    command: str = ""
    batches: tuple[int, ...] = ()
    frontier: tuple[Forecast, ...] = ()

    @property
    def is_predicted(self) -> bool:
        """Tell whether the step was profiled at other dimensions than it is shown at."""
        return self.dims != self.model.dims

    @property
    def is_by_module(self) -> bool:
        """Tell whether what is known of a step are whole passes of modules, and not its single operations."""
        return self.model.timeline(Config(), self.dims).profile.by_module

    @property
    def none(self) -> Forecast:
        """Return the step without recompute."""
        return self.model.forecast(Config(), self.dims)

    def largest_batch(self, config: Config) -> int | None:
        """Up to which batch a config should hold the limit; ``None`` without a limit, or a batch to change."""
        if self.limit_bytes is None or BATCH not in self.dims:
            return None
        return self.model.largest_batch(config, self.dims, self.limit_bytes)

    def presets_by_batch(self) -> dict[str, dict[int, Forecast]]:
        """Forecast each preset at each of the further batches, by the names of the presets."""
        return {
            name: {batch: self.model.forecast(config, {**self.dims, BATCH: batch}) for batch in self.batches}
            for name, config in self.model.space.presets.items()
        }

    def largest_listed(self, peaks: Mapping[int, Forecast]) -> int | None:
        """Return the largest of some batches that should hold the limit, 0 if none does; ``None`` without a limit."""
        if self.limit_bytes is None:
            return None
        return max((batch for batch, found in peaks.items() if found.peak_bytes <= self.limit_bytes), default=0)

    @property
    def card_limit(self) -> int | None:
        """Return an allocator's limit: the given one, or without one the card's memory; ``None`` where nobody knows."""
        estimate = self.none.estimate
        return self.limit_bytes or (estimate.machine.memory_bytes if estimate is not None else None)

    def describe(self, config: Config) -> str:
        """Return the config in a few words."""
        return self.model.space.describe(config)

    def timelines(self) -> dict[str, Timeline]:
        """Return both timelines by the names of their configs, that without recompute first.

        One where it is the config.
        """
        configs = dict.fromkeys([Config(), self.config])
        return {self.describe(config): self.model.timeline(config, self.dims) for config in configs}

    def effects(self) -> list[Effect]:
        """Return the effect of each plan."""
        return self.model.effects(self.dims)

    def forecasts(self) -> list[Forecast]:
        """Return the forecast of each surveyed config."""
        return self.model.forecasts(self.dims)
