"""What the model of memory and time says of all configs once the trials are over: for people to look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.plans import Config, Plan
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.search.frontier import undominated
from autorecompute.search.surrogate import Surrogate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is expected of a config.

    Attributes:
        config: Which.
        peak_bytes: Its peak.
        step: Its step time, relative to the reference's; to the fastest trial's where there is no reference.
    """

    config: Config
    peak_bytes: int
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanHindsight:
    """What one plan is expected to do; ``None`` where the model has no such config.

    Attributes:
        plan: The plan.
        alone: The config that has nothing else on.
        left_out: The config that has everything else on.
    """

    plan: Plan
    alone: Expected | None
    left_out: Expected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindsight:
    """What all trials together say of every config.

    Attributes:
        none: The config without recompute.
        all_on: The one with all plans on, where the model has it.
        frontier: The configs that no other beats in both peak and step time, the lowest peak first.
        presets: The presets of which something is known, by their names.
        effects: What each plan does, what saves most alone first.
        configs: How many configs were looked at.
        has_reference: Whether step times are relative to those without recompute.
    """

    none: Expected
    all_on: Expected | None
    frontier: tuple[Expected, ...]
    presets: dict[str, Expected]
    effects: tuple[PlanHindsight, ...]
    configs: int
    has_reference: bool


def look_back(
    space: Space, memory: MemoryModel, dims: Mapping[str, int], *, limit_bytes: int, trials: Sequence[Trial]
) -> Hindsight:
    """Fits the model to all trials, as the search does before each of them, and asks it about every config.

    Args:
        space: The plans.
        memory: A model of memory, made from small steps.
        dims: The dimensions that the trials were measured at.
        limit_bytes: The memory limit.
        trials: What was measured.

    Raises:
        KeyError: a shape depends on a dimension that is not known.
    """
    candidates = Candidates(space, memory.simulator(dims, choices_of(space)))
    surrogate = Surrogate(
        candidates,
        base_bytes=memory.base_bytes(dims),
        limit_bytes=limit_bytes,
        peak_error=memory.likely_error,
        trials=trials,
    )
    outlook = surrogate.outlook()

    def expect(config: Config) -> Expected | None:
        place = candidates.places.get(config)
        return None if place is None else expect_at(place)

    def expect_at(place: int) -> Expected:
        return Expected(
            config=candidates.config(place),
            peak_bytes=round(float(outlook.peak_bytes[place])),
            step=float(outlook.step[place]),
        )

    effects = (
        PlanHindsight(plan=p, alone=expect(Config.of([p])), left_out=expect(space.all_on.without_plan(p)))
        for p in space.plans
    )
    return Hindsight(
        none=expect_at(candidates.places[Config()]),
        all_on=expect(space.all_on),
        frontier=tuple(expect_at(place) for place in undominated(outlook.peak_bytes, outlook.step)),
        presets={name: told for name, config in space.presets.items() if (told := expect(config)) is not None},
        effects=tuple(sorted(effects, key=_peak_alone)),
        configs=len(candidates),
        has_reference=surrogate.has_reference,
    )


def _peak_alone(effect: PlanHindsight) -> tuple[float, str]:
    return effect.alone.peak_bytes if effect.alone is not None else np.inf, effect.plan.id
