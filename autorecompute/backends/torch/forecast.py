"""The peak of every config, put together from steps on fake tensors: one without recompute, and one with each choice.

What a choice does to a part of a step is added to what the others do. That is exact where they let go of different
tensors, which they do unless they exclude each other; where neighbouring blocks share a tensor it is a few percent off.
Imports no torch: the controller asks.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.backends.torch.drawing import draw
from autorecompute.backends.torch.extra import OUTSIDE_UNITS, OptionStep, Steps
from autorecompute.memory.model import Effect, Forecast, Simulated
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autorecompute.memory import Timeline

LIKELY_ERROR = 0.01
WORST_ERROR = 0.12
"""Shares of the activations. Mixes were off by 5 % at worst for a post-LN model, and by 10 % for a ResNet whose blocks
end with a ReLU in place; all others were exact to a hundredth."""

CHUNK = 4096
"""Configs that are simulated together: their arrays stay in the processor's cache."""

LARGEST_BATCH = 1 << 20

FORWARD = "forward"


class StepSimulator:
    """Simulates thousands of configs at once.

    Args:
        steps: What steps take.
        choices: What can be on, in the order of the columns that :meth:`simulate` takes.
        scale: How many times as large activations are as in the steps.
    """

    def __init__(self, steps: Steps, choices: Sequence[Choice], scale: float = 1.0) -> None:
        self._choices = tuple(choices)
        self._change = np.array([part.change for part in steps.parts], dtype=np.float64) * scale
        self._highest = np.array([part.highest for part in steps.parts], dtype=np.float64) * scale
        self._forward = np.array([part.phase == FORWARD for part in steps.parts])
        known = {(option.site, option.option): option for option in steps.options}
        rows = [_row(known.get((choice.site, choice.option)), choice, steps) for choice in self._choices]
        shape = (len(self._choices), len(steps.parts))
        self._changes = np.array([row[0] for row in rows]).reshape(shape) * scale
        self._heights = np.array([row[1] for row in rows]).reshape(shape) * scale
        self._works = np.array([row[2] for row in rows]).reshape(len(self._choices))

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """The configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        table = [[choice in config.choices for choice in self._choices] for config in configs]
        return np.array(table, dtype=np.float32).reshape(len(configs), len(self._choices))

    def simulate(self, switches: np.ndarray) -> Simulated:
        """What configs need.

        Args:
            switches: Which choices are on, of shape ``[configs, choices]``.
        """
        parts = [self._simulate(switches[start : start + CHUNK]) for start in range(0, max(len(switches), 1), CHUNK)]
        peaks, stashes, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Simulated(peaks, stashes, shares)

    def lives(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The change of each part of each config, and the most bytes that are alive in it."""
        change = self._change + switches @ self._changes
        highest = np.maximum(np.maximum(self._highest + switches @ self._heights, change), 0)
        before = np.cumsum(change, axis=1) - change
        return change, before + highest

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        change, alive = self.lives(switches)
        peaks = np.rint(alive.max(axis=1)).astype(np.int64)
        stashes = np.rint(change[:, self._forward].sum(axis=1)).astype(np.int64)
        return peaks, stashes, switches @ self._works


def _row(option: OptionStep | None, choice: Choice, steps: Steps) -> tuple[np.ndarray, np.ndarray, float]:
    """What a choice, with its count, adds to each part; nothing where no step was run with it."""
    change, highest = np.zeros(len(steps.parts)), np.zeros(len(steps.parts))
    if option is None:
        return change, highest, 0.0
    count = len(option.units) if choice.count is None else choice.count
    for place, changed, higher in zip(option.parts, option.change, option.highest, strict=True):
        share = _share(option.units, count, steps.parts[place].owner)
        change[place], highest[place] = share * changed, share * higher
    return change, highest, option.work * min(1.0, count / max(len(option.units), 1))


def _share(units: Sequence[int], count: int, owner: int) -> float:
    """The share of the occurrences that are on in a unit; of all where the unit has none."""
    inside = [place for place, unit in enumerate(units) if unit in {owner, OUTSIDE_UNITS}] or range(len(units))
    return sum(place < count for place in inside) / max(len(inside), 1)


@dataclass(frozen=True)
class TorchMemoryModel:
    """What a process that trains on PyTorch takes under every config.

    Attributes:
        space: The plans of the model.
        steps: What steps take, on fake tensors.
        resting_bytes: What the process held before its first step.
        sizes: The dimensions of the steps.
    """

    space: Space
    steps: Steps
    resting_bytes: int
    sizes: Mapping[str, int]

    likely_error = LIKELY_ERROR

    @property
    def dims(self) -> dict[str, int]:
        """The dimensions of the steps."""
        return {**self.sizes, BATCH: self.steps.batch}

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """What a process holds beyond the tensors that a step makes: the model and the optimizer's state among it."""
        del dims
        return self.resting_bytes + self.steps.later_bytes

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> StepSimulator:
        """A simulator with a column for each of these choices; activations are taken to grow as the batch does."""
        return StepSimulator(self.steps, choices, self._scale(dims))

    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """A config's step, part by part."""
        sizes = {**self.dims, **(dims or {})}
        change, alive = self._simulator_of(config, sizes).lives(np.ones((1, len(config.choices))))
        again = self._again(config)
        return draw(self.steps.parts, change[0], alive[0], again, sizes)

    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """What a config should need at these dimensions."""
        seen = self._simulator_of(config, dims).simulate(np.ones((1, len(config.choices))))
        live_bytes = int(seen.peak_bytes[0])
        return Forecast(
            config=config,
            peak_bytes=self.base_bytes(dims) + live_bytes,
            live_bytes=live_bytes,
            stash_bytes=int(seen.stash_bytes[0]),
            error_share=WORST_ERROR,
            recompute_share=float(seen.recompute_share[0]),
        )

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:
        """Presets, each plan alone and all but each, those that recompute least first."""
        found = [self.forecast(config, dims) for config in self._telling()]
        return sorted(found, key=lambda forecast: (forecast.recompute_share, forecast.peak_bytes))

    def effects(self, dims: Mapping[str, int]) -> list[Effect]:
        """What each plan does alone and beside all others, what saves most at the peak first."""
        all_on = self.space.all_on
        effects = [
            Effect(
                plan=plan,
                alone=self.forecast(Config.of([plan]), dims),
                left_out=self.forecast(all_on.without_plan(plan), dims) if all_on.has(plan) else None,
            )
            for plan in self.space.plans
        ]
        return sorted(effects, key=lambda effect: (effect.alone.peak_bytes, effect.plan.id))

    def largest_batch(self, config: Config, dims: Mapping[str, int], limit_bytes: int) -> int:
        """The largest batch whose forecast holds the limit, 0 where none does; every other dimension as given."""
        batches = range(1, LARGEST_BATCH)
        return bisect.bisect_right(
            batches, limit_bytes, key=lambda batch: self.forecast(config, {**dims, BATCH: batch}).peak_bytes
        )

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Nothing: parts of a step are told apart, and not their tensors."""
        return {}

    def _telling(self) -> Iterable[Config]:
        plans, all_on = self.space.plans, self.space.all_on
        alone = (Config.of([plan]) for plan in plans)
        left_out = (all_on.without_plan(plan) for plan in plans if all_on.has(plan))
        return dict.fromkeys([Config(), *self.space.presets.values(), *alone, *left_out])

    def _simulator_of(self, config: Config, dims: Mapping[str, int]) -> StepSimulator:
        return StepSimulator(self.steps, sorted(config.choices, key=str), self._scale(dims))

    def _scale(self, dims: Mapping[str, int]) -> float:
        return dims.get(BATCH, self.steps.batch) / self.steps.batch

    def _again(self, config: Config) -> frozenset[int]:
        """The units in which something is made again."""
        chosen = {(choice.site, choice.option): choice.count for choice in config.choices}
        return frozenset(
            unit
            for option in self.steps.options
            if (option.site, option.option) in chosen
            for unit in option.units[: chosen[option.site, option.option]]
        )
