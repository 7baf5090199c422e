"""What the compiler is told of single operators, where forward and backward pass are one graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.compiled.clusters import cluster_of, is_random

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import torch

POLICY = "recompute"
"""Under this name a node says what is to be done with its result; so do those of checkpoints."""


class Marks(CustomGraphPass):  # type: ignore[misc]
    """Has the compiler keep what was drawn by chance, or the seeds of it, and make clusters of operators again.

    Once anything is recomputed PyTorch takes an operator for one that it may run again unless it knows it as random,
    and it does not know most: the masks of a dropout in the backward pass were others than in the forward pass, without
    a word (seen with torch 2.13 on a CPU). Seeds take some bytes, and masks are made of them again.

    Args:
        next_pass: What the script has the compiler do at this place; ``None`` for nothing.
        recomputed: Names of clusters; what a checkpoint decides about stays as it is.
        groups: The group of each module, by its path.
    """

    def __init__(
        self,
        next_pass: Any = None,
        recomputed: Collection[str] = (),
        groups: Mapping[str, str] | None = None,
    ) -> None:
        self._next, self._recomputed, self._groups = next_pass, frozenset(recomputed), groups or {}

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Marks the operators of a joint graph of forward and backward pass."""
        if self._next is not None:
            self._next(graph)
        for node in graph.nodes:
            if is_random(node):
                node.meta[POLICY] = CheckpointPolicy.MUST_SAVE
            elif POLICY not in node.meta and cluster_of(node, self._groups) in self._recomputed:
                node.meta[POLICY] = CheckpointPolicy.MUST_RECOMPUTE

    def uuid(self) -> Any:
        """What stands for this pass in the keys of the compiler's caches: other clusters make other code."""
        groups = sorted(self._groups.items()) if self._recomputed else []
        own = (type(self).__qualname__, *sorted(self._recomputed), *groups)
        if self._next is None:
            return own
        inner = self._next.uuid() if isinstance(self._next, CustomGraphPass) else None
        return None if inner is None else (own, inner)
