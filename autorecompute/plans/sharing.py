"""Plans whose outputs lie in one buffer: a reshaped activation in that of the activation. ORT offers them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.plans.plan import Row
from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans.insight import Activation, Insight

PAIR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """One plan's outputs in another's buffers.

    Attributes:
        owner: The plan that makes the buffers.
        reuser: The plan whose outputs lie in them.
        doubled: Bytes that the activations of both plans count, as an expression; ``0`` where only the reuser's output
            is kept for itself. The owner cannot free them alone.
    """

    owner: Row
    reuser: Row
    doubled: str


def find_sharing(
    rows: Sequence[Row], frequency: int, insights: Sequence[Insight], dims: Mapping[str, int]
) -> Sharing | None:
    """How two plans that ORT offers together share their buffers; ``None`` where the activations do not tell.

    Args:
        rows: The plans.
        frequency: In how many nodes they share.
        insights: The activations that they are about.
        dims: Sizes at which activations are compared; one and its reshaped self have equal sizes in other words.
    """
    reusers = [row for row in rows if _reuses(row, insights)]
    if len(rows) != PAIR or len(reusers) != 1:
        return None
    (reuser,) = reusers
    (owner,) = (row for row in rows if row != reuser)
    sizes = {evaluate(kept.saving_symbolic, dims) for nodes, kept in _kept(reuser, insights) if kept.reuse_frequency}
    owned = _kept(owner, insights)
    doubled = [(nodes, kept) for nodes, kept in owned if evaluate(kept.saving_symbolic, dims) in sizes]
    others = sum(
        insight.frequency
        for insight in insights
        for choice in insight.choices
        if choice.row == owner and not any((insight.frequency, kept) in doubled for kept in choice.activations)
    )
    if sum(nodes for nodes, _ in doubled) < frequency <= others:
        return Sharing(owner=owner, reuser=reuser, doubled="0")
    if len(doubled) == 1 and doubled[0][0] >= frequency > others:
        return Sharing(owner=owner, reuser=reuser, doubled=f"{frequency}*{doubled[0][1].saving_symbolic}")
    return None


def _reuses(row: Row, insights: Sequence[Insight]) -> bool:
    return any(kept.reuse_frequency for _, kept in _kept(row, insights))


def _kept(row: Row, insights: Sequence[Insight]) -> list[tuple[int, Activation]]:
    """What the plan is about, each with the number of nodes that keep it."""
    return [
        (insight.frequency, kept)
        for insight in insights
        for choice in insight.choices
        if choice.row == row
        for kept in choice.activations
    ]
