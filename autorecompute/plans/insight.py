"""What ORT's insight table says: which activations are kept for the backward pass, and how each could be recomputed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autorecompute.plans.plan import Row

if TYPE_CHECKING:
    from collections.abc import Iterable

PERCENT = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One output of a node that is kept from the forward pass to the backward pass.

    Attributes:
        output: Which output of the node, from 0.
        shape: Its dimensions, each a number or an expression in symbolic dimensions.
        element_bytes: Size of an element.
        saved_bytes: What recomputing saves of each element: all of it, or less with a compromise.
        reuse_frequency: In how many of the cluster's nodes the output lies in a buffer that another one has left.
    """

    output: int
    shape: tuple[str, ...]
    element_bytes: int
    saved_bytes: int
    reuse_frequency: int = 0

    @property
    def saved_percent(self) -> float:
        """The share that recomputing saves."""
        return PERCENT * self.saved_bytes / self.element_bytes

    @property
    def saving_symbolic(self) -> str:
        """Bytes that recomputing saves in one node, as an expression."""
        return "*".join([str(self.saved_bytes), *(f"({size})" for size in self.shape)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to recompute the nodes of a cluster.

    Attributes:
        row: The switch.
        activations: What is not kept then, in the order of the outputs.
    """

    row: Row
    activations: tuple[Activation, ...]

    @property
    def saving_symbolic(self) -> str:
        """Bytes that it saves in one node, as an expression: the sum over all outputs that are kept."""
        return " + ".join(activation.saving_symbolic for activation in self.activations) or "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """Nodes whose kept activations and subgraphs are alike.

    Attributes:
        frequency: How many nodes there are.
        choices: How they can be recomputed; only one of them takes effect, the first where several are on.
    """

    frequency: int
    choices: tuple[Choice, ...]


def merge_alike(insights: Iterable[Insight]) -> tuple[Insight, ...]:
    """The insights with equal ones told as one, most frequent first.

    ORT 1.19 writes the outputs of a node in the order of a hash table and so lists equal nodes in several rows.
    """
    frequencies: Counter[tuple[Choice, ...]] = Counter()
    reuses: Counter[tuple[tuple[Choice, ...], Row, int]] = Counter()
    for insight in insights:
        kind = tuple(_without_reuse(choice) for choice in insight.choices)
        frequencies[kind] += insight.frequency
        for choice in insight.choices:
            for activation in choice.activations:
                reuses[kind, choice.row, activation.output] += activation.reuse_frequency
    merged = [
        Insight(frequency=frequency, choices=tuple(_with_reuse(kind, choice, reuses) for choice in kind))
        for kind, frequency in frequencies.items()
    ]
    return tuple(sorted(merged, key=lambda insight: (-insight.frequency, str(insight.choices))))


def _without_reuse(choice: Choice) -> Choice:
    plain = [replace(activation, reuse_frequency=0) for activation in choice.activations]
    return replace(choice, activations=tuple(sorted(plain, key=lambda activation: activation.output)))


def _with_reuse(
    kind: tuple[Choice, ...], choice: Choice, reuses: Counter[tuple[tuple[Choice, ...], Row, int]]
) -> Choice:
    return replace(
        choice,
        activations=tuple(
            replace(activation, reuse_frequency=reuses[kind, choice.row, activation.output])
            for activation in choice.activations
        ),
    )


def saving_of(row: Row, insights: Iterable[Insight]) -> tuple[str, int]:
    """Bytes that the switch saves over all nodes, as an expression, and how many nodes it is offered for."""
    offered = [(insight.frequency, choice) for insight in insights for choice in insight.choices if choice.row == row]
    parts = [f"{frequency}*({choice.saving_symbolic})" for frequency, choice in offered]
    return " + ".join(parts) or "0", sum(frequency for frequency, _ in offered)
