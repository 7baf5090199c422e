"""The plans of a training graph, evaluated at the dimensions that were asked for: what both forms of output hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.plans import Offer, Plan
from autorecompute.plans.dimensions import BATCH
from autorecompute.plans.savings import evaluate
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DOUBLINGS = (-2, -1, 0, 1, 2)
"""The table of batches goes so many doublings down and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One plan of the summary.

    Attributes:
        number: Its place in the list, from 1.
        plan: What it switches.
        requested: How many occurrences are asked for, -1 for all; ``None`` where it is off.
        recomputed: At how many places it is recomputed.
        saving_bytes: What it saves of what the forward pass keeps; ``None`` where a dimension is unknown.
        stated_bytes: What the training system states, where that is another figure.
        bytes_by_batch: The saving at other batches; empty where the model has no such dimension.
    """

    number: int
    plan: Plan
    requested: int | None
    recomputed: int
    saving_bytes: int | None
    stated_bytes: int | None
    bytes_by_batch: dict[int, int | None]

    @property
    def is_on(self) -> bool:
        """Tell whether anything is recomputed for it."""
        return self.recomputed > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that ``plans`` tells.

    Attributes:
        detection: What was found.
        offer: What is offered under what the environment switches on.
        dims: The dimensions at which savings are evaluated.
        command: A command to go on with, to paste.
    """

    detection: Detection
    offer: Offer
    dims: dict[str, int]
    command: str

    @property
    def batches(self) -> list[int]:
        """Return the batches of the table around the one asked for, none where the model has no such dimension."""
        batch = self.dims.get(BATCH)
        return [] if batch is None else sorted({max(1, int(batch * 2.0**doubling)) for doubling in DOUBLINGS})

    def lines(self) -> list[PlanLine]:
        """Return the plans with their figures at ``dims``, largest saving first."""
        plans = sorted(self.offer.plans, key=lambda plan: (-(evaluate(plan.saving, self.dims) or 0), plan.id))
        return [self._line(number, plan) for number, plan in enumerate(plans, start=1)]

    def _line(self, number: int, plan: Plan) -> PlanLine:
        asked = [self.offer.requested.get(choice) for choice in plan.choices]
        recomputed = min(self.offer.recomputed.get(choice, 0) for choice in plan.choices)
        return PlanLine(
            number=number,
            plan=plan,
            requested=None if None in asked else asked[0],
            recomputed=min(recomputed, plan.occurrences) if None not in asked else 0,
            saving_bytes=evaluate(plan.saving, self.dims),
            stated_bytes=None if plan.stated is None else evaluate(plan.stated, self.dims),
            bytes_by_batch={batch: evaluate(plan.saving, {**self.dims, BATCH: batch}) for batch in self.batches},
        )


def choose_dims(detection: Detection, batch: int | None, asked: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the dimensions to evaluate at: those of the first batch, but for what was asked.

    Args:
        detection: What was found.
        batch: The batch, where one was asked for.
        asked: Names and values; a name is one of ours, or of the training system's.

    Raises:
        UsageError: there is no such dimension, or it is given twice.
    """
    named = [*([(BATCH, batch)] if batch is not None else []), *asked]
    chosen = [(_resolve(name, detection), value) for name, value in named]
    twice = [name for name, _ in chosen if sum(name == other for other, _ in chosen) > 1]
    if twice:
        raise UsageError(f"The dimension '{twice[0]}' is given twice. Give one value for it.")
    return {**detection.dims, **dict(chosen)}


def _resolve(name: str, detection: Detection) -> str:
    by_alias: Mapping[str, str] = {alias: ours for ours, aliases in detection.aliases.items() for alias in aliases}
    resolved = by_alias.get(name, name)
    if resolved not in detection.dims:
        known = ", ".join(detection.dims) or "none at all"
        raise UsageError(f"The model has no symbolic dimension '{name}'. Choose among: {known}.")
    return resolved
