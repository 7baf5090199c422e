"""Checkpoints of blocks in joint graphs, marked as the compiler marks those that it traces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.checkpoints import MATMULS
from autorecompute.backends.torch.compiled.clusters import BACKWARD, path_of
from autorecompute.backends.torch.compiled.forms import INNER
from autorecompute.backends.torch.compiled.marks import POLICY, Marks, Tags
from autorecompute.backends.torch.options import KEEP_MATMUL, kept_cluster
from autorecompute.backends.torch.structure import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch.fx import Graph, Node

    from autorecompute.backends.torch.compiled.steps import Call
    from autorecompute.backends.torch.switchboard import Site

REGION = "ac_graph_id"
"""Under this name a node of a checkpoint says which one it belongs to."""


class Checkpoints:
    """Marks the joint graphs of a step as checkpoints of modules would have them.

    Args:
        site: The blocks.
        option: How they are checkpointed.
        count: How many of them, from the first on.
        groups: The group of each module, by its path.
    """

    def __init__(self, site: Site, option: str, count: int, groups: Mapping[str, str]) -> None:
        self._paths = [path.replace(f".{INNER}", "") for path in site.occurrences[:count]]
        self._keeps_matmuls = option == KEEP_MATMUL
        spared = kept_cluster(site.name, option)
        self._spare = Marks(None, Tags(spared=frozenset({spared} - {""}), groups=groups))

    def __call__(self, call: Call) -> Callable[[Graph], None] | None:
        """Return what marks the graph of a call.

        A graph with the parameters of a single block is a part of that block, as where blocks are compiled one by one.
        """
        blocks = {self._region_of(name) for name in call.parameters}
        if len(blocks) == 1:
            return None if blocks == {None} else self._mark_all
        return self._mark_within

    def _mark_all(self, graph: Graph) -> None:
        self._mark(graph, lambda node: None if node.meta.get("partitioner_tag") == BACKWARD else 0)

    def _mark_within(self, graph: Graph) -> None:
        self._mark(graph, lambda node: self._region_of(path_of(node)))

    def _mark(self, graph: Graph, region_of: Callable[[Node], int | None]) -> None:
        for node in graph.nodes:
            region = region_of(node) if node.op == "call_function" and POLICY not in node.meta else None
            if region is not None:
                keeps = self._keeps_matmuls and node.target in MATMULS
                node.meta[POLICY] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
                node.meta[REGION] = region
        self._spare(graph)

    def _region_of(self, path: str | None) -> int | None:
        if path is None:
            return None
        return next((at for at, around in enumerate(self._paths) if is_within(path, around)), None)
