"""Activations that are kept from the forward pass to the backward pass, and how each could be made again."""

from __future__ import annotations

from dataclasses import dataclass

from autorecompute.plans.plan import Choice

PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One output of an operation that is kept for the backward pass.

    Attributes:
        output: Which output of the operation, from 0.
        shape: Its dimensions, each a number or an expression in symbolic dimensions.
        element_bytes: Size of an element.
        saved_bytes: What recomputing saves of each element: all of it, or a part.
        reuse_frequency: In how many of the cluster's occurrences the output lies in a buffer that another one has left.
    """

    output: int
    shape: tuple[str, ...]
    element_bytes: int
    saved_bytes: int
    reuse_frequency: int = 0

    @property
    def saved_percent(self) -> float:
        """Return the share that recomputing saves."""
        return PERCENT * self.saved_bytes / self.element_bytes

    @property
    def saving(self) -> str:
        """Bytes that recomputing saves at one occurrence, as an expression."""
        return "*".join([str(self.saved_bytes), *(f"({size})" for size in self.shape)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way to make the activations of a cluster again.

    Attributes:
        choice: What switches it on.
        activations: What is not kept then, in the order of the outputs.
    """

    choice: Choice
    activations: tuple[Activation, ...]

    @property
    def saving(self) -> str:
        """Bytes that it saves at one occurrence, as an expression: the sum over all outputs that are kept."""
        return " + ".join(activation.saving for activation in self.activations) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Places of the model that keep alike activations, and can be recomputed alike.

    Attributes:
        occurrences: How many places there are.
        alternatives: How they can be recomputed; only one takes effect, the first where several are on.
    """

    occurrences: int
    alternatives: tuple[Alternative, ...]


def saving_of(choice: Choice, clusters: tuple[Cluster, ...]) -> tuple[str, int]:
    """Bytes that a choice saves over all its occurrences, as an expression, and how many occurrences it has."""
    offered = [
        (cluster.occurrences, alternative)
        for cluster in clusters
        for alternative in cluster.alternatives
        if alternative.choice == choice
    ]
    parts = [f"{occurrences}*({alternative.saving})" for occurrences, alternative in offered]
    return " + ".join(parts) or "0", sum(occurrences for occurrences, _ in offered)
