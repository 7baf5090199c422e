"""The operators of a joint graph of forward and backward pass, by the group of their module and by kind."""

from __future__ import annotations

import collections
import operator
import re
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import OpOverload

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.fx import Graph, Node

    from autorecompute.backends.torch.structure import Structure

BACKWARD = "is_backward"
"""What the compiler writes at nodes of the backward pass, under ``partitioner_tag``."""

_ROOT = re.compile(r"^L\['[^']*'\]\.?")
_SLICE = re.compile(r"slice\([^)]*\)\.?")
_ITEM = re.compile(r"\._modules\['([^']*)'\]")
_INNER = re.compile(r"(^|\.)_orig_mod(?=\.|$)")

VIEWS = frozenset(
    {"view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "slice", "unsqueeze", "squeeze"}
    | {"select", "split", "split_with_sizes", "alias", "as_strided", "detach", "unbind", "diagonal"}
)
"""Operators whose result is their first argument's memory."""


def kind_of(node: Node) -> str:
    """Return the name of a node's operator without namespace and overload; empty where it calls none."""
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def is_view(node: Node) -> bool:
    """Tell whether a node has no memory of its own."""
    return node.target is operator.getitem or kind_of(node) in VIEWS


def owner_of(node: Node) -> Node:
    """Return the node that made the memory that a node looks at."""
    while is_view(node):
        node = node.args[0]
    return node


def path_of(node: Node) -> str | None:
    """Return the path of the innermost module that a node of the forward pass was traced in.

    ``None`` of other nodes.
    """
    stack = node.meta.get("nn_module_stack")
    if not stack or node.meta.get("partitioner_tag") == BACKWARD:
        return None
    return _cleaned(list(stack.values())[-1][0])


def _cleaned(path: str) -> str:
    for pattern, replacement in ((_ROOT, ""), (_ITEM, r".\1"), (_SLICE, ""), (_INNER, "")):
        path = pattern.sub(replacement, path)
    return path.strip(".")


def cluster_of(node: Node, groups: Mapping[str, str]) -> str | None:
    """Return what a choice calls the cluster of a node: ``blocks.*.mlp/gelu``; ``None`` of what is in none.

    What is drawn by chance is in none: it is kept in any case. Nor is what the model itself does around its modules.

    Args:
        node: A node of a joint graph.
        groups: The group of each module, by its path.
    """
    path, kind = path_of(node), kind_of(node)
    group = groups.get(path) if path is not None else None
    if not group or not kind or is_view(node) or is_random(node):
        return None
    return f"{group}/{kind}"


def is_random(node: Node) -> bool:
    """Tell whether running a node again would draw other numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def groups_of(structure: Structure) -> dict[str, str]:
    """Return the group of each module, by its path."""
    return {path: group for group, paths in structure.groups.items() for path in paths}


def clusters_of(graph: Graph, groups: Mapping[str, str]) -> dict[str, list[Node]]:
    """Return all clusters of a joint graph."""
    found: dict[str, list[Node]] = collections.defaultdict(list)
    for node in graph.nodes:
        if (name := cluster_of(node, groups)) is not None:
            found[name].append(node)
    return dict(found)


def bytes_of(node: Node) -> int:
    """Return the bytes of what a node makes, at the sizes that it was traced with."""
    return sum(_bytes_of_tensor(value) for value in _tensors(node.meta.get("val")))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _bytes_of_tensor(value: torch.Tensor) -> int:
    count = value.numel()
    hint = count.node.hint if isinstance(count, torch.SymInt) else count
    size: int = value.element_size()
    return int(hint or 0) * size
