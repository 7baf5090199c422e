"""How many bytes a step of compiled code has alive at its highest, from the two halves of its graphs.

The compiler joins operators into kernels, and what is made and read inside one kernel takes no memory. Which those are
is decided by its scheduler; here it is guessed: a result is stored where the graph returns it, where it is reduced from
others, where a library's kernel makes or reads it, and where such a kernel lies between it and a reader.
"""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING

from autorecompute.backends.torch.compiled.clusters import bytes_of, is_view, kind_of, owner_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from torch.fx import Graph, GraphModule, Node

    from autorecompute.backends.torch.compiled.joint import Halves
    from autorecompute.backends.torch.compiled.steps import Cuts

LIBRARY = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "embedding_dense_backward", "sort", "topk"}
)
"""Operators that are calls of a library, beside attention: nothing is joined with them."""

ATTENTION = "_scaled_dot_product"
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var", "var_mean", "any", "all", "argmax", "argmin", "prod"})

OUTSIDE_COPIES = 3
"""What a script's own loss holds at its highest, as a multiple of what the model returns: its logarithms, their
gradient, and the gradient of the result."""


def peak_of(cuts: Cuts, eager_bytes: int | None = None) -> int:
    """Return the most bytes alive in a step beyond what is held between two steps.

    Forward, each graph adds what it keeps and returns to what those before it left; backward, they go one by one. A
    last graph that returns a single number has the loss in it. Elsewhere the script makes one of what it returns.

    Args:
        cuts: The halves of the step's graphs.
        eager_bytes: What lives outside of them between forward and backward pass, where a part of the model is not
            compiled; ``None`` where all of it is.
    """
    most = held = 0
    for halves in cuts.halves:
        most = max(most, held + _Lifetimes(halves.forward, ()).highest)
        outside = _returned_bytes(halves)
        is_last = halves is cuts.halves[-1]
        backward = _Lifetimes(halves.backward, _given_back(halves), _donated(halves))
        most = max(most, held + is_last * outside + backward.highest)
        held += halves.kept_bytes + outside
        if is_last and eager_bytes is None and not _has_loss(halves):
            held += (OUTSIDE_COPIES - 1) * outside
    return max(most, held + (eager_bytes or 0))


def _returned_bytes(halves: Halves) -> int:
    """Bytes of what a graph returns and does not keep."""
    returned = {owner_of(node) for node in halves.returned} - {owner_of(node) for node in halves.kept}
    return sum(bytes_of(node) for node in returned if node.op != "placeholder")


def _given_back(halves: Halves) -> set[str]:
    """Return the names of inputs that a backward pass lets go of: what was kept for it, and gradients."""
    kept = {node.name for node in halves.kept}
    made = {node.name for node in halves.kept if owner_of(node).op != "placeholder"}
    return made | {node.name for node in halves.backward.graph.nodes if node.op == "placeholder"} - kept


def _donated(halves: Halves) -> set[str]:
    """Name of what was kept and the compiler may write over: what it alone holds, so no gradient and no result."""
    returned = {owner_of(node) for node in halves.returned}
    owners = {node.name: owner_of(node) for node in halves.kept}
    return {name for name, owner in owners.items() if owner.op != "placeholder" and owner not in returned}


def _has_loss(halves: Halves) -> bool:
    return any(node.meta["val"].numel() == 1 for node in halves.returned if "val" in node.meta)


class _Lifetimes:
    """One half of a step: when each result that is stored comes and goes.

    Args:
        module: The half.
        given: Names of its inputs that are let go of once they were read for the last time.
        donated: Those of them that may be written over then.
    """

    def __init__(self, module: GraphModule, given: Collection[str], donated: Collection[str] = ()) -> None:
        self._donated = donated
        self._outputs = {owner_of(node) for node in module.graph.output_node().all_input_nodes}
        self._nodes = [node for node in module.graph.nodes if not is_view(node) and node.op != "output"]
        self._readers = _readers_of(module.graph)
        self._inputs = [node for node in self._nodes if node.op == "placeholder" and node.name in given]
        self._stored = self._find_stored()
        self._reads = functools.cache(self._find_reads)

    @property
    def highest(self) -> int:
        """Return the most bytes of stored results and such inputs that are alive at once."""
        steps = [node for node in self._nodes if node in self._stored]
        last = {source: at for at, node in enumerate(steps) for source in self._reads(node)}
        ending: dict[int, list[Node]] = collections.defaultdict(list)
        mortal = {*steps, *self._inputs} - self._outputs
        for source, at in last.items():
            if source in mortal:
                ending[at].append(source)
        alive = most = sum(map(bytes_of, self._inputs))
        for at, node in enumerate(steps):
            freed = sum(map(bytes_of, ending[at]))
            taken_over = 0 if _is_library(node) else self._taken_over(node, ending[at])
            alive += bytes_of(node) - taken_over
            most = max(most, alive)
            alive -= freed - taken_over
            if node not in last and node in mortal:
                alive -= bytes_of(node)
        return most

    def _taken_over(self, node: Node, ending: Iterable[Node]) -> int:
        """Bytes of a result that is written where one of the same size was, which is read for the last time."""
        own = [other for other in ending if other.op != "placeholder" or other.name in self._donated]
        size = bytes_of(node)
        return size if any(bytes_of(other) == size for other in own) else 0

    def _find_stored(self) -> set[Node]:
        calls = [node for node in self._nodes if node.op == "call_function"]
        depths = self._depths(calls)
        return {
            node
            for node in calls
            if node in self._outputs
            or _is_library(node)
            or kind_of(node) in REDUCTIONS
            or any(_is_library(reader) or depths[reader] > depths[node] for reader in self._readers[node])
        }

    def _depths(self, calls: Sequence[Node]) -> dict[Node, int]:
        """Return how many calls of a library lie before each node."""
        depths: dict[Node, int] = {}
        for node in calls:
            sources = {owner_of(source) for source in node.all_input_nodes}
            depths[node] = max((depths.get(source, 0) + _is_library(source) for source in sources), default=0)
        return depths

    def _find_reads(self, node: Node) -> frozenset[Node]:
        """Return what is stored and read for a node, be it for what it is joined with."""
        found: set[Node] = set()
        for source in {owner_of(source) for source in node.all_input_nodes}:
            is_inner = source.op == "call_function" and source not in self._stored
            found |= self._reads(source) if is_inner else {source}
        return frozenset(found)


def _readers_of(graph: Graph) -> dict[Node, set[Node]]:
    """Return who reads the memory of each node."""
    readers: dict[Node, set[Node]] = collections.defaultdict(set)
    for node in graph.nodes:
        if not is_view(node) and node.op == "call_function":
            for source in node.all_input_nodes:
                readers[owner_of(source)].add(node)
    return readers


def _is_library(node: Node) -> bool:
    kind = kind_of(node)
    return kind in LIBRARY or kind.startswith(ATTENTION)
