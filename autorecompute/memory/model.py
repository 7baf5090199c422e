"""What a training system's model of its memory is asked: the peaks of configs that were never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autorecompute.memory.estimate import Estimate
from autorecompute.memory.rank_peak import RankPeak
from autorecompute.plans import Config, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.memory.timeline import Timeline
    from autorecompute.plans import Choice, Space


STEP_ERROR = 0.005
"""How far off what one choice adds to a step may be where its kernels were timed or counted, as a share of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a config should need at some dimensions; nothing here was measured there.

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
    """What one plan does, beside all others on and beside all others off.

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
    """What configs need, an entry for each.

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
        """Return what each choice adds to a step beyond its kernels, where it is on at all its occurrences.

        One a column.
        """
        ...

    @property
    def step_error(self) -> np.ndarray | float:
        """Return how far off what a choice adds may be, as a share of a step.

        Standard deviations, one each or one for all.
        """
        ...

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        ...

    def simulate(self, switches: np.ndarray) -> Simulated:
        """Return what configs need.

        Args:
            switches: At which share of its occurrences each choice is on, of shape ``[configs, choices]``; 0 or 1
                where plans do not count.
        """
        ...


class PeakForecaster(Protocol):
    """What a search has to know of memory before it measures."""

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
        """Return what a process needs at its peak beyond the tensors that are alive then."""
        ...

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:
        """Return all configs that were looked at, those that recompute least first."""
        ...


class MemoryModel(PeakForecaster, Protocol):
    """How a training system's allocator and order of operations turn what small steps showed into peaks."""

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
        """Return what a config should need at these dimensions."""
        ...

    def effects(self, dims: Mapping[str, int]) -> list[Effect]:
        """Return what each plan that was looked at alone does, what saves most at the peak first."""
        ...

    def largest_batch(self, config: Config, dims: Mapping[str, int], limit_bytes: int) -> int:
        """Return the largest batch whose forecast holds the limit, 0 if none does; every other dimension as given."""
        ...

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Return the plan that each tensor depends on, by the name of the tensor, as far as that is known."""
        ...
