"""Backward passes beside the training: the gradients that the script has stay as they are."""

from __future__ import annotations

import contextlib
import gc
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import is_fake
from torch.autograd.function import BackwardCFunction

from autorecompute.backends.torch.graphs import roots_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def gradients(results: Sequence[Tensor], wanted: Sequence[Tensor], incoming: Sequence[Tensor]) -> list[Tensor | None]:
    """Return what ``torch.autograd.grad`` gives of leaves, whatever the script checkpoints."""
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
        hooks = [one.register_post_accumulate_grad_hook(_drop) for one in wanted]
        try:
            loss.backward()
        finally:
            for hook in hooks:
                hook.remove()


def _drop(leaf: Tensor) -> None:
    leaf.grad = None


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
