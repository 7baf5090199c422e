"""One config beside no recompute, at some dimensions, under some limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory.model import Effect, Forecast, MemoryModel
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
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
    """

    model: MemoryModel
    config: Config
    dims: dict[str, int]
    limit_bytes: int | None = None
    command: str = ""

    @property
    def is_predicted(self) -> bool:
        """Whether the step was profiled at other dimensions than it is shown at."""
        return self.dims != self.model.dims

    @property
    def none(self) -> Forecast:
        """The step without recompute."""
        return self.model.forecast(Config(), self.dims)

    def largest_batch(self, config: Config) -> int | None:
        """Up to which batch a config should hold the limit; ``None`` without a limit, or a batch to change."""
        if self.limit_bytes is None or BATCH not in self.dims:
            return None
        return self.model.largest_batch(config, self.dims, self.limit_bytes)

    def describe(self, config: Config) -> str:
        """The config in a few words."""
        return self.model.space.describe(config)

    def timelines(self) -> dict[str, Timeline]:
        """Both timelines by the names of their configs, that without recompute first; one where it is the config."""
        configs = dict.fromkeys([Config(), self.config])
        return {self.describe(config): self.model.timeline(config, self.dims) for config in configs}

    def effects(self) -> list[Effect]:
        """What each plan does."""
        return self.model.effects(self.dims)

    def forecasts(self) -> list[Forecast]:
        """What each surveyed config should need."""
        return self.model.forecasts(self.dims)
