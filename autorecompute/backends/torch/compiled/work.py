"""How much work operators of a joint graph are, beside each other: what is made again as a share of a step."""

from __future__ import annotations

import collections
import math
from typing import TYPE_CHECKING

import torch

from autorecompute.backends.torch.compiled.clusters import bytes_of, cluster_of, is_view, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch.fx import Node

    from autorecompute.backends.torch.compiled.joint import Halves
    from autorecompute.backends.torch.compiled.steps import Cuts

FLOPS_A_BYTE = 10.0
"""So many operations take as long as writing a byte: 50 billion a second, and 5 GB, on a core."""

JOINED = 0.5
"""What is joined with others in a kernel is not written to memory, or read from it, each time."""

AGAIN = 0.35
"""What is made again takes this share of the work that it is: it is joined with what reads it, and neither written nor
fetched. The search learns by how much it is off (``make bench-compiled``: of a GPT-2 of two layers)."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


def work_of(cuts: Cuts) -> float:
    """Return the work of a step."""
    return sum(_sum((*halves.forward.graph.nodes, *halves.backward.graph.nodes)) for halves in cuts.halves)


def work_again(cuts: Cuts) -> float:
    """Return the work of what backward passes make again, some of it by the compiler's own choice."""
    return AGAIN * sum(_sum(made_again(halves)) for halves in cuts.halves)


def made_again(halves: Halves) -> list[Node]:
    """Return the operators that a backward pass runs again."""
    forward = {node.name for node in halves.forward.graph.nodes if node.op == "call_function"}
    return [node for node in halves.backward.graph.nodes if node.op == "call_function" and node.name in forward]


def by_work(halves: Halves, groups: Mapping[str, str]) -> list[str]:
    """Return the clusters of operators that a backward pass runs again, those of the most work first."""
    work: dict[str, float] = collections.defaultdict(float)
    for node in made_again(halves):
        if (name := cluster_of(node, groups)) is not None:
            work[name] += _work(node)
    return sorted(work, key=lambda name: (-work[name], name))


def _sum(nodes: Iterable[Node]) -> float:
    return sum(_work(node) for node in nodes if node.op == "call_function" and not is_view(node))


def _work(node: Node) -> float:
    flops = _flops(node)
    return bytes_of(node) + flops / FLOPS_A_BYTE if flops else JOINED * bytes_of(node)


def _flops(node: Node) -> float:
    """Operations of a matrix product, a convolution or attention; 0 of others, which memory holds up."""
    kind, value = kind_of(node), node.meta.get("val")
    given = [source.meta["val"] for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
    if kind in PRODUCTS and isinstance(value, torch.Tensor):
        return 2.0 * math.prod(map(int, value.shape)) * int(given[-2].shape[-1])
    if kind == "convolution" and isinstance(value, torch.Tensor):
        return 2.0 * math.prod(map(int, value.shape)) * math.prod(map(int, given[1].shape[1:]))
    if kind.startswith("_scaled_dot_product") and given:
        return 4.0 * math.prod(map(int, given[0].shape)) * int(given[0].shape[-2])
    return 0.0
