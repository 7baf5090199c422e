"""The peak of every config, put together from steps on fake tensors: one without recompute, and one with each choice.

What a choice does to a part of a step is added to what the others do. That is exact where they let go of different
tensors. Where one keeps what another drops, a step was run with both. What blocks share goes by the block that decides
about it.
Imports no torch: the controller asks.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from autorecompute.backends.torch.amounts import Amount
from autorecompute.backends.torch.columns import columns_of
from autorecompute.backends.torch.drawing import draw
from autorecompute.backends.torch.extra import OnCard, Steps, TorchDetection
from autorecompute.backends.torch.options import CALL_SECONDS
from autorecompute.memory import Estimate, Machine, RankPeak
from autorecompute.memory.model import STEP_ERROR, Effect, Forecast, Simulated
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from autorecompute.memory import Timeline
    from autorecompute.training_job import Detection

LIKELY_ERROR = 0.01
WORST_ERROR = 0.12
"""Shares of the activations. Mixes were off by 5 % at worst for a post-LN model, and by 10 % for a ResNet whose blocks
end with a ReLU in place; all others were exact to a hundredth."""

ROUGH_ERROR = 0.06
"""The same where no step could be run on fake tensors: what real steps tell soon counts for more."""

CHUNK = 4096
"""Configs that are simulated together: their arrays stay in the processor's cache."""

LARGEST_BATCH = 1 << 20

FORWARD = "forward"


class StepSimulator:
    """Simulates thousands of configs at once.

    Args:
        steps: What steps take.
        choices: What can be on, in the order of the columns that :meth:`simulate` takes.
        covers: The sites that each site makes again along with itself.
        scale: How many times as large activations are as in the steps.
    """

    def __init__(
        self, steps: Steps, choices: Sequence[Choice], covers: Mapping[str, Collection[str]], scale: float = 1.0
    ) -> None:
        self._change = _scaled([(part.change, part.fixed_change) for part in steps.parts], scale)
        self._highest = _scaled([(part.highest, part.fixed_highest) for part in steps.parts], scale)
        self._forward = np.array([part.phase == FORWARD for part in steps.parts])
        self._choices, self._columns = choices, columns_of(steps, choices, covers, scale)
        calls = [CALL_SECONDS.get(choice.option, 0.0) for choice in choices]
        self.call_seconds = np.array(calls) * [column.occurrences for column in self._columns[: len(choices)]]
        self.step_error = STEP_ERROR

    def matrix(self, configs: Sequence[Config]) -> np.ndarray:
        """Return the configs as :meth:`simulate` takes them: one line each, a column for each choice."""
        table = [
            [column.share_in(config, choice) for choice, column in zip(self._choices, self._columns, strict=False)]
            for config in configs
        ]
        return np.array(table, dtype=np.float32).reshape(len(configs), len(self._choices))

    def simulate(self, switches: np.ndarray) -> Simulated:
        """Return what configs need.

        Args:
            switches: At which share of its occurrences each choice is on, of shape ``[configs, choices]``.
        """
        parts = [self._simulate(switches[start : start + CHUNK]) for start in range(0, max(len(switches), 1), CHUNK)]
        peaks, stashes, shares = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Simulated(peaks, stashes, shares)

    def lives(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the change of each part of each config, the most bytes that are alive in it, and the extra work."""
        change, highest = (np.tile(plain, (len(switches), 1)) for plain in (self._change, self._highest))
        work = np.zeros(len(switches))
        counts = self._counts(switches)
        for at, column in enumerate(self._columns):
            (rows,) = np.nonzero(counts[:, at])
            on, share = column.on(counts[rows], at)
            column.add(on, rows, change, highest)
            work[rows] += share * column.work
        highest = np.maximum(np.maximum(highest, change), 0)
        before = np.cumsum(change, axis=1) - change
        return change, before + highest, work

    def made_again(self, config: Config) -> Amount:
        """Return what one config computes once more in a step."""
        counts = self._counts(self.matrix([config]))
        shares = (float(column.on(counts, at)[1][0]) for at, column in enumerate(self._columns))
        return sum((column.again.times(share) for column, share in zip(self._columns, shares, strict=True)), Amount())

    def _counts(self, switches: np.ndarray) -> np.ndarray:
        counts = np.zeros((len(switches), len(self._columns)), dtype=int)
        for at, column in enumerate(self._columns):
            counts[:, at] = column.met(counts) if column.both else column.counts(switches[:, at])
        return counts

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        change, alive, work = self.lives(switches)
        peaks = np.rint(alive.max(axis=1)).astype(np.int64)
        stashes = np.rint(change[:, self._forward].sum(axis=1)).astype(np.int64)
        return peaks, stashes, work


def _scaled(parts: Sequence[tuple[int, int]], scale: float) -> np.ndarray:
    """Bytes, with those of them that are fixed, at another batch."""
    table = np.array(parts, dtype=np.float64)
    at_scale: np.ndarray = (table[:, 0] - table[:, 1]) * scale + table[:, 1]
    return at_scale


def _sizes(detection: Detection) -> dict[str, int]:
    return {name: size for name, size in detection.dims.items() if name != BATCH}


@dataclass(frozen=True)
class TorchMemoryModel:
    """What a process that trains on PyTorch takes under every config.

    Attributes:
        space: The plans of the model.
        steps: What steps take, on fake tensors.
        resting_bytes: What the process held before its first step.
        sizes: The dimensions of the steps.
        on_card: What presets take on a card, where one was asked for.
        machine: The machine whose seconds the steps tell, where they do.
        of_rank: What the peak of presets is made of on one rank, where one was asked for.
        likely_error: By less than this share half of all forecasts are off.
    """

    space: Space
    steps: Steps
    resting_bytes: int
    sizes: Mapping[str, int]
    on_card: tuple[OnCard, ...] = ()
    of_rank: tuple[RankPeak, ...] = ()
    machine: Machine | None = None
    likely_error: float = LIKELY_ERROR

    @classmethod
    def of(cls, detection: Detection) -> Self | None:
        """Return that of every config of a detection; ``None`` where no step could be run on fake tensors."""
        extra = TorchDetection.of(detection)
        if extra.steps is None:
            return None
        return cls(
            space=detection.space,
            steps=extra.steps,
            resting_bytes=detection.resting_bytes,
            sizes=_sizes(detection),
            on_card=extra.on_card,
            of_rank=extra.of_rank,
            machine=extra.machine,
        )

    @classmethod
    def roughly_of(cls, detection: Detection) -> Self | None:
        """Return what one forward pass tells of every config; ``None`` where it tells nothing."""
        steps = TorchDetection.of(detection).rough_steps
        if steps is None:
            return None
        return cls(detection.space, steps, detection.resting_bytes, _sizes(detection), likely_error=ROUGH_ERROR)

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of the steps."""
        return {**self.sizes, BATCH: self.steps.batch}

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return what a process holds beyond the tensors that a step makes.

        The model and the optimizer's state among it.
        """
        growth = round(self.steps.batch_bytes * (self._scale(dims) - 1))
        return self.resting_bytes + self.steps.later_bytes + growth

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> StepSimulator:
        """Return a simulator with a column for each of these choices.

        Activations are taken to grow as the batch does.
        """
        return StepSimulator(self.steps, choices, self.space.covers, self._scale(dims))

    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """Return a config's step, part by part."""
        sizes = {**self.dims, **(dims or {})}
        simulator = self._simulator_of(config, sizes)
        change, alive, _ = simulator.lives(simulator.matrix([config]))
        again = self._again(config)
        return draw(self.steps.parts, change[0], alive[0], again, sizes)

    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """Return what a config should need at these dimensions."""
        simulator = self._simulator_of(config, dims)
        seen = simulator.simulate(simulator.matrix([config]))
        live_bytes, is_looked_at = int(seen.peak_bytes[0]), self._scale(dims) == 1
        on_card = next((one for one in self.on_card if one.config == config and is_looked_at), None)
        return Forecast(
            config=config,
            peak_bytes=self.base_bytes(dims) + live_bytes,
            live_bytes=live_bytes,
            stash_bytes=int(seen.stash_bytes[0]),
            error_share=WORST_ERROR,
            recompute_share=float(seen.recompute_share[0]),
            allocated_bytes=on_card.allocated_bytes if on_card is not None else None,
            reserved_bytes=on_card.reserved_bytes if on_card is not None else None,
            estimate=self._estimate(self.machine, simulator, config) if self.machine and is_looked_at else None,
            rank=next((one for one in self.of_rank if one.config == config and is_looked_at), None),
        )

    def forecasts(self, dims: Mapping[str, int]) -> list[Forecast]:
        """Presets, each plan alone and all but each, those that recompute least first."""
        found = [self.forecast(config, dims) for config in self._telling()]
        return sorted(found, key=lambda forecast: (forecast.recompute_share, forecast.peak_bytes))

    def effects(self, dims: Mapping[str, int]) -> list[Effect]:
        """Return what each plan does alone and beside all others, what saves most at the peak first."""
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
        """Return the largest batch whose forecast holds the limit, 0 if none does; every other dimension as given."""
        batches = range(1, LARGEST_BATCH)
        return bisect.bisect_right(
            batches, limit_bytes, key=lambda batch: self.forecast(config, {**dims, BATCH: batch}).peak_bytes
        )

    def plans_by_tensor(self) -> dict[str, Plan]:
        """Return nothing: parts of a step are told apart, and not their tensors."""
        return {}

    def _telling(self) -> Iterable[Config]:
        plans, all_on = self.space.plans, self.space.all_on
        alone = (Config.of([plan]) for plan in plans)
        left_out = (all_on.without_plan(plan) for plan in plans if all_on.has(plan))
        return dict.fromkeys([Config(), *self.space.presets.values(), *alone, *left_out])

    def _estimate(self, machine: Machine, simulator: StepSimulator, config: Config) -> Estimate:
        """Return what a step computes, and the seconds of its operators one after the other."""
        again = simulator.made_again(config)
        whole = self.steps.amount + again
        return Estimate(
            machine=machine,
            operations=whole.operations,
            moved_bytes=whole.moved_bytes,
            operations_again=again.operations,
            moved_bytes_again=again.moved_bytes,
            seconds=whole.cost,
        )

    def _simulator_of(self, config: Config, dims: Mapping[str, int]) -> StepSimulator:
        return self.simulator(dims, [Choice(on.site, on.option) for on in sorted(config.choices, key=str)])

    def _scale(self, dims: Mapping[str, int]) -> float:
        return dims.get(BATCH, self.steps.batch) / self.steps.batch

    def _again(self, config: Config) -> frozenset[int]:
        """Return the units in which something is made again."""
        chosen = {(choice.site, choice.option): choice.count for choice in config.choices}
        return frozenset(
            unit
            for option in self.steps.options
            if (option.site, option.option) in chosen
            for units in option.units[: chosen[option.site, option.option]]
            for unit in units
        )
