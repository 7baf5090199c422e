"""A model of memory, and how to look at it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autorecompute.memory import Forecast, MemoryModel
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, SEQUENCE

if TYPE_CHECKING:
    from autorecompute.memory import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakView:
    """A model of memory, and how to look at it.

    Attributes:
        config: One of the configs that were looked at, to hold against the step without recompute.
        limit_bytes: Limit of the peak; ``None`` where nobody asked.
        command: A command that measures, to paste.
        batches: Further batches to see the presets at.
        frontier: Forecasts of the configs that no other beats in both peak and extra work, the lowest peak first; empty
            where only profiled configs can be forecast.
        by_length: Models of batches of other lengths, by their tokens, the shortest first.
    """

    model: MemoryModel
    config: Config
    dims: dict[str, int]
    limit_bytes: int | None = None
    command: str = ""
    batches: tuple[int, ...] = ()
    frontier: tuple[Forecast, ...] = ()
    by_length: Mapping[int, MemoryModel] = field(default_factory=dict)

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

    def presets_by_length(self) -> Iterator[tuple[int, str, PeakView, Forecast]]:
        """Forecast each preset at each length: tokens, its name, the view of such batches, and the forecast."""
        for length, model in self.by_length.items():
            view = replace(self, model=model, dims={**self.dims, SEQUENCE: length})
            for name, config in model.space.presets.items():
                yield length, name, view, model.forecast(config, view.dims)

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
        machine = self.none.machine
        return self.limit_bytes or (machine.memory_bytes if machine is not None else None)

    def largest_batch_on_card(self, forecast: Forecast) -> int | None:
        """Up to which batch the card should hold a config, if its allocator reserves the same share beyond its tensors.

        ``None`` where nothing is known of a card, or there is no batch to change.
        """
        if self.card_limit is None or forecast.reserved_bytes is None or BATCH not in self.dims:
            return None
        for_tensors = self.card_limit * forecast.peak_bytes // max(forecast.reserved_bytes, 1)
        return self.model.largest_batch(forecast.config, self.dims, for_tensors)

    def timelines(self) -> dict[str, Timeline]:
        """Return both timelines by the names of their configs, none first; one where it is the config."""
        configs = dict.fromkeys([Config(), self.config])
        return {self.model.space.describe(config): self.model.timeline(config, self.dims) for config in configs}
