"""Forecasts the peak of every config from what steps on fake tensors had alive."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np

from autorecompute.backends.torch.forecast.records import CALL_SECONDS, Amount, OptionStep, Steps, TorchDetection
from autorecompute.memory import (
    HEAD,
    OPTIMIZER,
    Estimate,
    Forecast,
    MemoryModel,
    Operation,
    Phase,
    Simulator,
    StepProfile,
    Tensor,
    trace,
)
from autorecompute.plans import Choice, Config
from autorecompute.plans.savings import BATCH, SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autorecompute.backends.torch.forecast.records import Part
    from autorecompute.memory import Timeline
    from autorecompute.plans import Plan
    from autorecompute.training_job import Detection


class Column:
    """Difference that one choice makes to a step where all its occurrences are on, as in its ``OptionStep``.

    Attributes:
        shares: Share of the choice that is on in each part by its count, of shape ``[occurrences + 1, parts + 1]``; the
            last entry is of all occurrences.
        covered: By the place of each column that covers this one: the share of each part, and of all occurrences in
            the last entry, that lies in its first occurrences, of shape ``[its occurrences + 1, parts + 1]``.
        both: Of two choices that meet, where this is about such: the place of each, and by its count the number of
            these occurrences in its own.
    """

    def __init__(self, option: OptionStep, owners: Sequence[int], scale: float) -> None:
        self.option, self.occurrences = option, max(len(option.units), 1)
        self.parts = np.array(option.parts, dtype=int)
        self.change = np.array(option.change, dtype=np.float64) * scale
        self.highest = np.array(option.highest, dtype=np.float64) * scale
        self.shares = _table(option, owners, [set(range(count)) for count in range(self.occurrences + 1)])
        self.covered: dict[int, np.ndarray] = {}
        self.both: dict[int, np.ndarray] = {}

    def add(self, on: np.ndarray, rows: np.ndarray, change: np.ndarray, highest: np.ndarray) -> None:
        """Add to the parts of the steps in ``rows`` the share of the choice that is on, of shape ``[rows, parts]``."""
        once = len(set(self.option.parts))
        again = range(once, len(self.parts))  # of these a part may have several
        for told in (slice(None, once), *(slice(at, at + 1) for at in again)):
            where = np.ix_(rows, self.parts[told])
            change[where] += on[:, told] * self.change[told]
            highest[where] += on[:, told] * self.highest[told]

    def on(self, counts: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the share of the choice that makes something again, in each of its parts and of all occurrences.

        The counts are those of all columns, of shape ``[configs, columns]``, with this one in the place ``at``.
        """
        hidden = [table[counts[:, outer]] for outer, table in self.covered.items()]
        most = np.max(hidden, axis=0) if hidden else 0.0
        left = np.maximum(self.shares[counts[:, at]] - most, 0.0)
        return left[:, :-1], left[:, -1]


def columns_of(
    steps: Steps, choices: Sequence[Choice], covers: Mapping[str, Collection[str]], scale: float
) -> list[Column]:
    """Return a column for each of these choices, and then those of interactions.

    One adds nothing where no step was run with it. For the arguments see :class:`StepSimulator`.
    """
    known = {(option.site, option.option): option for option in steps.options}
    owners = [part.owner for part in steps.parts]
    on = [(choice.site, choice.option) for choice in choices]
    nothing = OptionStep(site="", option="", units=(), parts=(), change=(), highest=(), work=0.0)
    options = [known[one] if one in known else replace(nothing, site=one[0], option=one[1]) for one in on]
    options += [one for one in steps.interactions if {(one.site, one.option), one.beside} <= set(on)]
    columns = [Column(option, owners, scale) for option in options]
    for place, outer in enumerate(options[: len(on)]):
        counts = range(columns[place].occurrences + 1)
        for column in columns:
            option = column.option
            inside = functools.partial(_inside, option, outer)
            if option.beside and on[place] in {(option.site, option.option), option.beside}:
                column.both[place] = np.array([len(inside(count)) for count in counts])
            if not {option.site, *option.beside[:1]}.isdisjoint(covers.get(outer.site, ())):
                column.covered[place] = _table(option, owners, [inside(count) for count in counts])
    return columns


def _inside(option: OptionStep, outer: OptionStep, count: int) -> set[int]:
    """Return the occurrences that lie in the first ones of another choice, by their units.

    Where both have occurrences in no unit, of each as large a share.
    """
    units: set[int] = set().union(*outer.units[:count])
    loose = [place for place, own in enumerate(option.units) if not own]
    share = outer.units[:count].count(()) / max(outer.units.count(()), 1)
    within = {place for place, own in enumerate(option.units) if own and units.issuperset(own)}
    return within | set(loose[: math.ceil(len(loose) * share)])


def _table(option: OptionStep, owners: Sequence[int], chosen: Sequence[Collection[int]]) -> np.ndarray:
    """Return a line for each choice of occurrences: its share in each part that differs, and of all as the last."""
    units = option.units
    parts = option.owners or [owners[part] for part in option.parts]
    is_in = np.array([[not own or part in own for part in parts] for own in units], dtype=bool)
    is_in = is_in.reshape(len(units), len(parts))
    is_in[:, ~is_in.any(axis=0)] = True  # what has no occurrence in its own unit depends on all of them
    groups = np.column_stack([is_in, np.ones(len(units), dtype=bool)]).astype(np.float64)
    is_chosen = np.array([[place in line for place in range(len(units))] for line in chosen], dtype=np.float64)
    shares: np.ndarray = is_chosen.reshape(len(chosen), len(units)) @ groups / np.maximum(groups.sum(axis=0), 1)
    return shares


FORWARD, BACKWARD = "forward", "backward"


def draw(
    parts: Sequence[Part], change: np.ndarray, alive: np.ndarray, again: Collection[int], dims: Mapping[str, int]
) -> Timeline:
    """Return the timeline of a step with these parts and dimensions, in which some units make something again.

    Each part changes the bytes that are alive; most of these are ``alive`` in it, above those before the step.
    """
    # The parts of each backward pass are one.
    first = [
        place
        for place, part in enumerate(parts)
        if not place or (part.phase, part.name) != (parts[place - 1].phase, parts[place - 1].name)
    ]
    parts, change, alive = (
        [parts[place] for place in first],
        np.add.reduceat(change, first),
        np.maximum.reduceat(alive, first),
    )
    kept = _in_time(_kept(parts, change), alive)
    passing = [
        _Piece(f"while it runs: {_name(part)} ({part.phase})", place, place, round(float(most)) - _held(kept, place))
        for place, (part, most) in enumerate(zip(parts, alive, strict=True))
    ]
    tensors = tuple(
        Tensor(name=name, shape=(str(size),), element_bytes=1, first=first, last=last, phase=phase)
        for name, first, last, size, phase in (*kept, *passing)
        if size > 0
    )
    operations = tuple(
        Operation(
            name=f"{place}/{_name(part)}", operator=_name(part), phase=_phase(part, parts, place, again), seconds=0.0
        )
        for place, part in enumerate(parts)
    )
    backward = next((place for place, part in enumerate(parts) if part.phase != FORWARD), len(parts))
    return trace(
        StepProfile(operations=operations, tensors=tensors, backward=backward, dims=dict(dims), by_module=True)
    )


class _Piece(NamedTuple):
    """Bytes that are alive from one part to another; fewer than none where a part lets go of others."""

    name: str
    first: int
    last: int
    size: int
    phase: Phase | None = None


def _in_time(kept: list[_Piece], alive: np.ndarray) -> list[_Piece]:
    """Return the same pieces, none alive in the part that makes or frees it where that holds less than all of them."""
    for place, most in enumerate(alive):
        if _held(kept, place) > most:
            kept = [
                piece._replace(
                    first=piece.first + (piece.first == place < piece.last),
                    last=piece.last - (piece.first < piece.last == place),
                )
                for piece in kept
            ]
    return kept


def _held(kept: Sequence[_Piece], place: int) -> int:
    return sum(piece.size for piece in kept if piece.first <= place <= piece.last)


def _kept(parts: Sequence[Part], change: np.ndarray) -> list[_Piece]:
    """Return the bytes that each forward pass leaves for its backward pass, and their gradients."""
    last_of = {part.name: place for place, part in enumerate(parts) if part.phase == BACKWARD}
    found: list[_Piece] = []
    pending: dict[str, int] = {}
    for place, part in enumerate(parts):
        size = round(float(change[place]))
        if part.phase == FORWARD:
            pending[part.name] = pending.get(part.name, 0) + size
            if size < 0 and found:  # it lets go of what an earlier part kept
                found[-1] = found[-1]._replace(size=found[-1].size + size)
            else:
                found.append(_Piece(f"kept by {_name(part)}", place, last_of.get(part.name, len(parts) - 1), size))
        elif part.phase == BACKWARD:
            left = size + pending.pop(part.name, 0)
            if place + 1 < len(parts):
                found.append(_Piece(f"gradients of {_name(part)}", place + 1, len(parts) - 1, left, Phase.BACKWARD))
    return found


def _name(part: Part) -> str:
    return part.name or (HEAD if part.phase != "outside" else OPTIMIZER)


def _phase(part: Part, parts: Sequence[Part], place: int, again: Collection[int]) -> Phase:
    if part.phase == FORWARD:
        is_head = not part.name and any(other.name for other in parts[:place])
        return Phase.LOSS if is_head else Phase.FORWARD
    return Phase.RECOMPUTE if part.phase == BACKWARD and part.name and part.owner in again else Phase.BACKWARD


LIKELY_ERROR = 0.01
WORST_ERROR = 0.12
"""Shares of the activations. Mixes were off by 5 % at worst for a post-LN model, and by 10 % for a ResNet whose blocks
end with a ReLU in place; all others were exact to a hundredth."""

ROUGH_ERROR = 0.06  # the same where no step could be run on fake tensors: what real steps tell soon counts for more


class StepSimulator(Simulator):
    """Simulates steps part by part.

    Args:
        covers: The sites that each site makes again along with itself.
        scale: Size of activations, as a multiple of those in the steps.
    """

    def __init__(
        self, steps: Steps, choices: Sequence[Choice], covers: Mapping[str, Collection[str]], scale: float = 1.0
    ) -> None:
        self._change = _scaled([(part.change, part.fixed_change) for part in steps.parts], scale)
        self._highest = _scaled([(part.highest, part.fixed_highest) for part in steps.parts], scale)
        self._forward = np.array([part.phase == FORWARD for part in steps.parts])
        self._columns = columns_of(steps, choices, covers, scale)
        super().__init__(choices, [column.occurrences for column in self._columns[: len(choices)]])
        self.call_seconds = np.array([CALL_SECONDS.get(on.option, 0.0) for on in choices]) * self._occurrences

    def lives(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the change of each part of each config, the most bytes that are alive in it, and the extra work."""
        change, highest = (np.tile(plain, (len(switches), 1)) for plain in (self._change, self._highest))
        work = np.zeros(len(switches))
        counts = self._counts(switches)
        for at, column in enumerate(self._columns):
            (rows,) = np.nonzero(counts[:, at])
            on, share = column.on(counts[rows], at)
            column.add(on, rows, change, highest)
            work[rows] += share * column.option.work
        highest = np.maximum(np.maximum(highest, change), 0)
        before = np.cumsum(change, axis=1) - change
        return change, before + highest, work

    def made_again(self, config: Config) -> Amount:
        """Return the recompute of one config in a step."""
        counts = self._counts(self.matrix([config]))
        again = (
            column.option.again.times(float(column.on(counts, at)[1][0])) for at, column in enumerate(self._columns)
        )
        return sum(again, Amount())

    def _counts(self, switches: np.ndarray) -> np.ndarray:
        counts = np.zeros((len(switches), len(self._columns)), dtype=int)
        for at, column in enumerate(self._columns):
            met = [table[counts[:, place]] for place, table in column.both.items()]
            counts[:, at] = np.min(met, axis=0) if met else np.rint(switches[:, at] * column.occurrences)
        return counts

    def _simulate(self, switches: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        change, alive, work = self.lives(switches)
        peaks, stashes = alive.max(axis=1), change[:, self._forward].sum(axis=1)
        return np.rint(peaks).astype(np.int64), np.rint(stashes).astype(np.int64), work


def _scaled(parts: Sequence[tuple[int, int]], scale: float) -> np.ndarray:
    """Return bytes at another batch, from pairs of all and of those that do not grow with it."""
    table = np.array(parts, dtype=np.float64)
    at_scale: np.ndarray = (table[:, 0] - table[:, 1]) * scale + table[:, 1]
    return at_scale


@dataclass(frozen=True)
class TorchMemoryModel(MemoryModel):
    """Memory of a process that trains on PyTorch, under every config.

    Attributes:
        resting_bytes: Bytes that the process held before its first step.
        sizes: The dimensions of the steps but for the batch.
        told: The detection: presets on a card and on a rank, and the machine whose seconds the steps tell.
    """

    steps: Steps
    resting_bytes: int
    sizes: Mapping[str, int]
    told: TorchDetection = field(default_factory=TorchDetection)
    likely_error: float = LIKELY_ERROR

    @classmethod
    def of(cls, detection: Detection, *, roughly: bool = False) -> Self | None:
        """Return that of a detection; ``None`` where no step could be run on fake tensors.

        Where asked for, it is what one forward pass tells roughly.
        """
        told = TorchDetection.of(detection)
        steps = told.rough_steps if roughly else told.steps
        if steps is None:
            return None
        return cls(
            space=detection.space,
            steps=steps,
            resting_bytes=detection.resting_bytes,
            sizes={name: size for name, size in detection.dims.items() if name != BATCH},
            told=replace(told, machine=None) if roughly else told,
            likely_error=ROUGH_ERROR if roughly else LIKELY_ERROR,
        )

    @classmethod
    def by_length(cls, detection: Detection) -> dict[int, Self]:
        """Return the models of shorter batches than the one that was detected, by their lengths in tokens."""
        model, told = cls.of(detection), TorchDetection.of(detection).by_length
        if model is None:
            return {}
        return {
            one.length: replace(model, steps=one.steps, sizes={**model.sizes, SEQUENCE: one.length}) for one in told
        }

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of the steps."""
        return {**self.sizes, BATCH: self.steps.batch}

    def base_bytes(self, dims: Mapping[str, int]) -> int:
        """Return the bytes that a process holds beyond the tensors of a step: the model, the optimizer's state."""
        growth = round(self.steps.batch_bytes * (self._scale(dims) - 1))
        return self.resting_bytes + self.steps.later_bytes + growth

    def simulator(self, dims: Mapping[str, int], choices: Sequence[Choice]) -> StepSimulator:
        """Return a simulator with a column for each choice; activations are taken to grow as the batch does."""
        return StepSimulator(self.steps, choices, self.space.covers, self._scale(dims))

    def timeline(self, config: Config, dims: Mapping[str, int] | None = None) -> Timeline:
        """Return a config's step, part by part."""
        sizes = {**self.dims, **(dims or {})}
        simulator = self._simulator_of(config, sizes)
        change, alive, _ = simulator.lives(simulator.matrix([config]))
        counts = {(choice.site, choice.option): choice.count for choice in config.choices}
        made_again = {
            unit
            for option in self.steps.options
            if (option.site, option.option) in counts
            for unit in itertools.chain.from_iterable(option.units[: counts[option.site, option.option]])
        }
        return draw(self.steps.parts, change[0], alive[0], made_again, sizes)

    def forecast(self, config: Config, dims: Mapping[str, int]) -> Forecast:
        """Forecast a config at these dimensions."""
        simulator = self._simulator_of(config, dims)
        seen = simulator.simulate(simulator.matrix([config]))
        live_bytes, is_looked_at = int(seen.peak_bytes[0]), self._scale(dims) == 1
        machine = self.told.machine if is_looked_at else None
        on_card = next((one for one in self.told.on_card if one.config == config and is_looked_at), None)
        return Forecast(
            config=config,
            peak_bytes=self.base_bytes(dims) + live_bytes,
            live_bytes=live_bytes,
            stash_bytes=int(seen.stash_bytes[0]),
            error_share=WORST_ERROR,
            recompute_share=float(seen.recompute_share[0]),
            allocated_bytes=on_card.allocated_bytes if on_card is not None else None,
            reserved_bytes=on_card.reserved_bytes if on_card is not None else None,
            estimate=self._estimate(simulator.made_again(config)) if machine is not None else None,
            machine=machine,
            rank=next((one for one in self.told.of_rank if one.config == config and is_looked_at), None),
        )

    @functools.cached_property
    def looked_at(self) -> Collection[Config]:
        """Return the presets, each plan alone and all but each."""
        plans, all_on = self.space.plans, self.space.all_on
        alone = (Config.of([plan]) for plan in plans)
        left_out = (all_on.without_plan(plan) for plan in plans if all_on.has(plan))
        return dict.fromkeys([Config(), *self.space.presets.values(), *alone, *left_out])

    def _others(self, plan: Plan, all_on: Config) -> Config | None:
        return all_on.without_plan(plan) if all_on.has(plan) else None

    def _estimate(self, again: Amount) -> Estimate:
        whole = self.steps.amount + again
        return Estimate(
            step_seconds=whole.cost,
            flops=whole.operations,
            moved_bytes=whole.moved_bytes,
            flops_again=again.operations,
            moved_bytes_again=again.moved_bytes,
        )

    def _simulator_of(self, config: Config, dims: Mapping[str, int]) -> StepSimulator:
        return self.simulator(dims, [Choice(on.site, on.option) for on in sorted(config.choices, key=str)])

    def _scale(self, dims: Mapping[str, int]) -> float:
        return dims.get(BATCH, self.steps.batch) / self.steps.batch
