"""What the compiler is told of single operators, where forward and backward pass are one graph."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.compiled.clusters import cluster_of, is_random

if TYPE_CHECKING:
    import torch

POLICY = "recompute"
"""Under this name a node says what is to be done with its result; so do those of checkpoints."""


@dataclass(frozen=True)
class Tags:
    """What is to be done with clusters of operators, by their names.

    Attributes:
        recomputed: Made again, but for what a checkpoint decides about.
        kept: Kept, where no checkpoint decides about them.
        spared: Kept where a checkpoint would make them again.
        groups: The group of each module of the model, by its path.
    """

    recomputed: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    spared: frozenset[str] = frozenset()
    groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        """Tell whether no cluster is named."""
        return not (self.recomputed or self.kept or self.spared)

    def policy_of(self, node: torch.fx.Node) -> CheckpointPolicy | None:
        """Return what is to be done with a node's result; ``None`` where that stays as it is."""
        cluster = cluster_of(node, self.groups)
        if cluster in (self.spared if POLICY in node.meta else self.kept):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_RECOMPUTE if POLICY not in node.meta and cluster in self.recomputed else None

    def key(self) -> tuple[Any, ...]:
        """Return another one for each that makes other code."""
        groups = () if self.is_none else tuple(sorted(self.groups.items()))
        return (*(tuple(sorted(names)) for names in (self.recomputed, self.kept, self.spared)), groups)


class Marks(CustomGraphPass):  # type: ignore[misc]
    """Has the compiler keep what was drawn by chance, or the seeds of it, and do with clusters what is asked for.

    Once anything is recomputed PyTorch takes an operator for one that it may run again unless it knows it as random,
    and it does not know most: the masks of a dropout in the backward pass were others than in the forward pass, without
    a word (seen with torch 2.13 on a CPU). Seeds take some bytes, and masks are made of them again.

    Args:
        next_pass: What the script has the compiler do at this place; ``None`` for nothing.
        tags: What is asked for.
    """

    def __init__(self, next_pass: Any = None, tags: Tags | None = None) -> None:
        self._next, self._tags = next_pass, tags or Tags()

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Mark the operators of a joint graph of forward and backward pass."""
        if self._next is not None:
            self._next(graph)
        for node in graph.nodes:
            if (policy := self._policy_of(node)) is not None:
                node.meta[POLICY] = policy

    def _policy_of(self, node: torch.fx.Node) -> CheckpointPolicy | None:
        """Return what is to be done with a node's result.

        What a checkpoint would make again is kept where it is one of several results that are kept: a tuple cannot be.
        """
        if node.target is operator.getitem and POLICY in node.meta:
            whole = node.args[0].meta.get(POLICY)
            return whole if whole is CheckpointPolicy.MUST_SAVE else None
        return CheckpointPolicy.MUST_SAVE if is_random(node) else self._tags.policy_of(node)

    def uuid(self) -> Any:
        """Return what stands for this pass in the keys of the compiler's caches: other clusters make other code."""
        own = (type(self).__qualname__, *self._tags.key())
        if self._next is None:
            return own
        inner = self._next.uuid() if isinstance(self._next, CustomGraphPass) else None
        return None if inner is None else (own, inner)
