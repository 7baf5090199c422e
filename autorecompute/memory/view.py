"""One config beside no recompute, at some dimensions, under some limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory.model import Effect, Forecast, MemoryModel
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.memory.timeline import Timeline


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
        """Return what each preset should need at each of the further batches, by the names of the presets."""
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
        """Return what an allocator may reserve: the limit, or without one the card's memory.

        ``None`` where nobody knows.
        """
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
        """Return what each plan does."""
        return self.model.effects(self.dims)

    def forecasts(self) -> list[Forecast]:
        """Return what each surveyed config should need."""
        return self.model.forecasts(self.dims)
