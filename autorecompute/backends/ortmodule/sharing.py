"""Plans whose outputs lie in one buffer: a reshaped activation in that of the activation. ORT offers them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.plans import Choice
from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans import Activation, Cluster

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

    owner: Choice
    reuser: Choice
    doubled: str


def find_sharing(
    choices: Sequence[Choice], occurrences: int, clusters: Sequence[Cluster], dims: Mapping[str, int]
) -> Sharing | None:
    """Return how two plans that ORT offers together share their buffers; ``None`` where the activations do not tell.

    Args:
        choices: The plans.
        occurrences: In how many nodes they share.
        clusters: The activations that they are about.
        dims: Sizes at which activations are compared; one and its reshaped self have equal sizes in other words.
    """
    reusers = [choice for choice in choices if _reuses(choice, clusters)]
    if len(choices) != PAIR or len(reusers) != 1:
        return None
    (reuser,) = reusers
    (owner,) = (choice for choice in choices if choice != reuser)
    sizes = {evaluate(kept.saving, dims) for nodes, kept in _kept(reuser, clusters) if kept.reuse_frequency}
    owned = _kept(owner, clusters)
    doubled = [(nodes, kept) for nodes, kept in owned if evaluate(kept.saving, dims) in sizes]
    others = sum(
        cluster.occurrences
        for cluster in clusters
        for way in cluster.alternatives
        if way.choice == owner and not any((cluster.occurrences, kept) in doubled for kept in way.activations)
    )
    if sum(nodes for nodes, _ in doubled) < occurrences <= others:
        return Sharing(owner=owner, reuser=reuser, doubled="0")
    if len(doubled) == 1 and doubled[0][0] >= occurrences > others:
        return Sharing(owner=owner, reuser=reuser, doubled=f"{occurrences}*{doubled[0][1].saving}")
    return None


def _reuses(choice: Choice, clusters: Sequence[Cluster]) -> bool:
    return any(kept.reuse_frequency for _, kept in _kept(choice, clusters))


def _kept(choice: Choice, clusters: Sequence[Cluster]) -> list[tuple[int, Activation]]:
    """Return what the plan is about, each with the number of nodes that keep it."""
    return [
        (cluster.occurrences, kept)
        for cluster in clusters
        for way in cluster.alternatives
        if way.choice == choice
        for kept in way.activations
    ]
