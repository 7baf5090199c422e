"""What a stored study tells of a problem that differs from its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autorecompute.measurement import Trial
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The trials of a stored study with the same plans, and the problem they were measured on.

    Step times carry over as shares of the reference's (``Trial.relative_throughput``), peaks in proportion to batch and
    dimensions.

    Attributes:
        source: Name of the stored study.
        batch: Its batch.
        limit_bytes: Its memory limit, which the outcomes of its trials were held against.
        resting_bytes: What its script held before the first activation existed.
        dims: Its other dimensions, the length of its sequences for instance.
        trials: What it measured.
        answer: The config that it recommends.
        finalists: The configs that it raced, the fastest first.
    """

    source: str
    batch: int
    limit_bytes: int
    resting_bytes: int
    trials: tuple[Trial, ...]
    dims: dict[str, int] = field(default_factory=dict)
    answer: Config | None = None
    finalists: tuple[Config, ...] = ()

    def growth(self, batch: int, dims: Mapping[str, int]) -> float:
        """Return how many times as large an activation is at these dimensions, if it has all of them."""
        shared = [size / self.dims[name] for name, size in dims.items() if self.dims.get(name)]
        return math.prod(shared, start=batch / self.batch)

    def peak_bytes_grown(self, trial: Trial, growth: float) -> int | None:
        """Return the peak of one of its trials with activations that many times as large; ``None`` if it has none."""
        peak_bytes = trial.measurement.peak_bytes
        if peak_bytes is None:
            return None
        return self.resting_bytes + round((peak_bytes - self.resting_bytes) * growth)

    def fastest_within(self, limit_bytes: int, growth: float) -> Sequence[Trial]:
        """Return its trials that should hold a limit with activations that many times as large, the fastest first."""
        peaks = {trial.number: self.peak_bytes_grown(trial, growth) for trial in self.trials}
        fitting = [trial for trial in self.trials if (peak := peaks[trial.number]) is not None and peak <= limit_bytes]
        return sorted(fitting, key=slowness)


def slowness(trial: Trial) -> tuple[float, float]:
    """Order trials, the fastest first: by their steps where no reference could run that they have a share of."""
    return -(trial.relative_throughput or 0.0), trial.measurement.median_step_seconds or 0.0
