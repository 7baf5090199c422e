"""What somebody wants to see of a survey: one config beside no recompute, at some dimensions, under some limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory.survey import Effect, Forecast, Survey
from autorecompute.plans import Config
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from autorecompute.memory.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakView:
    """A survey, and how to look at it.

    Attributes:
        survey: The profiled steps.
        config: What to hold against the step without recompute; one of the surveyed configs.
        dims: The dimensions to see everything at.
        limit_bytes: What the peak may reach; ``None`` where nobody asked.
        command: A command that measures, to paste.
    """

    survey: Survey
    config: Config
    dims: dict[str, int]
    limit_bytes: int | None = None
    command: str = ""

    @property
    def is_predicted(self) -> bool:
        """Whether the step was profiled at other dimensions than it is shown at."""
        return self.dims != self.survey.dims

    @property
    def none(self) -> Forecast:
        """The step without recompute."""
        return self.survey.forecast(Config(), self.dims)

    def largest_batch(self, config: Config) -> int | None:
        """Up to which batch a config should hold the limit; ``None`` without a limit, or a batch to change."""
        if self.limit_bytes is None or BATCH not in self.dims:
            return None
        return self.survey.largest_batch(config, self.dims, self.limit_bytes)

    def describe(self, config: Config) -> str:
        """The config in a few words."""
        return self.survey.space.describe(config)

    def timelines(self) -> dict[str, Timeline]:
        """Both timelines by the names of their configs, that without recompute first; one where it is the config."""
        configs = dict.fromkeys([Config(), self.config])
        return {self.describe(config): self.survey.timeline(config, self.dims) for config in configs}

    def effects(self) -> list[Effect]:
        """What each plan does."""
        return self.survey.effects(self.dims)

    def forecasts(self) -> list[Forecast]:
        """What each surveyed config should need."""
        return self.survey.forecasts(self.dims)
