"""Reads autograd's graph: its nodes, what they save, and how a backward pass walks them."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.function import BackwardCFunction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from torch.autograd.graph import Node


LEAF = "AccumulateGrad"

ALIAS = "ReshapeAliasBackward0"
VIEW = "ViewBackward0"
"""The nodes that a reshape leaves in a graph: the first where no dispatch mode watches, as in training; the second
where one does, as in a probe."""


_View = type("_View", (), {})  # the common kind of both


def kind_of(node: Node) -> type:
    """Return the class of a node; the same for both that a reshaping may leave."""
    return _View if type(node).__name__ in {ALIAS, VIEW} else type(node)


def sequence_of(node: Node) -> int:
    """Return the number that autograd gave the node; a later node has a higher one."""
    number: int = node._sequence_nr()
    return number


GraphForm = tuple[tuple[int, int, type], ...]
"""A graph without its nodes: for each the way to it, which is the place of another node and its edge, and its kind.

The way to a root is -1 and its place among the roots.
"""


def roots_of(results: Iterable[Tensor]) -> list[Node]:
    """Return the nodes that made these tensors, each once."""
    return list(dict.fromkeys(tensor.grad_fn for tensor in results if tensor.grad_fn is not None))


def graph_of(results: Iterable[Tensor], first: int) -> tuple[list[Node], GraphForm]:
    """Return the nodes that a call made, breadth first from its results, and the form of their graph."""
    roots = [(place, root) for place, root in enumerate(roots_of(results)) if sequence_of(root) >= first]
    nodes, ways = [root for _, root in roots], [(-1, place) for place, _ in roots]
    known = set(nodes)
    for place, node in enumerate(nodes):  # grows while it is gone through
        for edge, (following, _) in enumerate(node.next_functions):
            if following is None or following in known or type(following).__name__ == LEAF:
                continue
            if sequence_of(following) >= first:
                known.add(following)
                nodes.append(following)
                ways.append((place, edge))
    return nodes, tuple((*way, kind_of(node)) for way, node in zip(ways, nodes, strict=True))


def route(form: GraphForm, wanted: Collection[int]) -> Callable[[Iterable[Tensor]], dict[int, Node] | None]:
    """Return what finds these places of a graph again in the graph of a later step, from its results.

    It gives the nodes there and on the way, by their places; None where a node is not what it was.
    """
    needed: set[int] = set()
    for one in wanted:
        place = one
        while place >= 0 and place not in needed:
            needed.add(place)
            place, *_ = form[place]
    edges: dict[int, list[tuple[int, int, type]]] = {-1: []}
    for place in sorted(needed):
        parent, edge, kind = form[place]
        edges.setdefault(parent, []).append((place, edge, kind))

    def follow(results: Iterable[Tensor]) -> dict[int, Node] | None:
        found: dict[int, Node] = {}
        roots = [(root, 0) for root in roots_of(results)]
        for parent, wanted_here in edges.items():
            following = roots if parent < 0 else found[parent].next_functions
            for place, edge, kind in wanted_here:
                node = following[edge][0] if edge < len(following) else None
                if node is None or (type(node) is not kind and kind_of(node) is not kind):
                    return None
                found[place] = node
        return found

    return follow


def grad_of_leaves(
    results: Sequence[Tensor], wanted: Sequence[Tensor], incoming: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the gradients of leaves as ``torch.autograd.grad`` does, whatever the script checkpoints."""
    if not _goes_back_by_itself(results):
        return list(torch.autograd.grad(results, wanted, incoming, allow_unused=True))
    with kept_gradients():
        torch.autograd.backward(results, incoming)
        return [one.grad for one in wanted]


def show_gradients(loss: Tensor, wanted: Sequence[Tensor]) -> None:
    """Go back from a loss; hooks of the leaves see their gradients, none of which is held."""
    if not _goes_back_by_itself([loss]):
        torch.autograd.grad(loss, wanted, allow_unused=True)
        return
    with kept_gradients():
        hooks = [one.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None)) for one in wanted]
        try:
            loss.backward()
        finally:
            for hook in hooks:
                hook.remove()


def _goes_back_by_itself(results: Sequence[Tensor]) -> bool:
    """Tell whether something in the graph may call ``backward()``, which puts gradients into leaves.

    Only functions in Python can. A checkpoint with ``use_reentrant=True`` is one, and refuses ``autograd.grad``.
    """
    nodes = set(roots_of(results))
    left = list(nodes)
    while left:
        node = left.pop()
        if isinstance(node, BackwardCFunction):
            return True
        following = {one for one, _ in node.next_functions if one is not None} - nodes
        nodes |= following
        left += following
    return False


@contextlib.contextmanager
def kept_gradients() -> Iterator[None]:
    """Inside, no tensor with data has a gradient, and nothing of the script's runs when one gets it.

    Behind this ``.grad`` is what it was: of weights in no module, and of whatever else trains in this process, too.
    """
    before = [(leaf, leaf.grad) for leaf in _leaves()]
    hooks = [(own, dict(own)) for leaf, _ in before if (own := leaf._post_accumulate_grad_hooks)]
    try:
        for leaf, gradient in before:
            if gradient is not None:
                leaf.grad = None
        for own, _ in hooks:
            own.clear()
        yield
    finally:
        for leaf, gradient in before:
            if leaf.grad is not gradient:
                leaf.grad = gradient
        for own, kept in hooks:
            own.update(kept)


def _leaves() -> list[Tensor]:
    """Return all tensors of this process that gradients are put into; no list has those that a script holds."""
    with torch._C.DisableTorchFunctionSubclass():
        tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
        return [one for one in tensors if one.is_leaf and one.requires_grad and not is_fake(one)]
