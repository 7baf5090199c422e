"""Attention made again: calls of ``scaled_dot_product_attention`` in chosen modules keep query, key and value alone.

A kernel that fuses attention saves little. Where it is written out as two products, a softmax and a dropout (on the CPU
with dropout, or with a mask that no kernel takes), its scores are most of what a block saves.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from autorecompute.backends.torch.checkpoints import checkpointed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.nn import Module

    from autorecompute.backends.torch.recompute_check import Watch

NAME = "scaled_dot_product_attention"
ORIGINAL = "__autorecompute_original__"


class _Around(threading.local):
    """What the calls of this thread go through now."""

    call: Callable[..., Any] | None = None
    attend: Callable[..., Any] | None = None


_AROUND = _Around()


def around_attention(call: Callable[..., Any], forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what ``forward`` does while every call of attention goes through ``call(attention, *args, **kwargs)``."""
    before, _AROUND.call = _AROUND.call, call
    try:
        return forward(*args, **kwargs)
    finally:
        _AROUND.call = before


@contextlib.contextmanager
def attention_by(attend: Callable[..., Any]) -> Iterator[None]:
    """Have calls of attention in this thread be answered by another function instead of PyTorch's."""
    was_on, before = hasattr(getattr(functional, NAME), ORIGINAL), _AROUND.attend
    intercept_attention(on=True)
    _AROUND.attend = attend
    try:
        yield
    finally:
        _AROUND.attend = before
        intercept_attention(on=was_on)


class AttentionCheckpoint:
    """Checkpoints the attention that a module calls; an ``Around`` for it.

    Args:
        watch: Compares what is made again, and tells when that is to end.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __call__(self, forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns."""
        return around_attention(self._again, forward, *args, **kwargs)

    def _again(self, attention: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self._watch.is_taken_back:
            return attention(*args, **kwargs)
        return checkpointed(attention, args, kwargs, watch=self._watch)


def intercept_attention(*, on: bool) -> None:
    """Have ``torch.nn.functional``'s attention ask what it is to go through, or be plain again.

    It stays as it is within :func:`attention_by`.
    """
    current = getattr(functional, NAME)
    original = getattr(current, ORIGINAL, None)
    if on and original is None:
        setattr(functional, NAME, _asking(current))
    elif not on and original is not None and _AROUND.attend is None:
        setattr(functional, NAME, original)


def _asking(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def attention(*args: Any, **kwargs: Any) -> Any:
        call, attend = _AROUND.call, _AROUND.attend or original
        return attend(*args, **kwargs) if call is None else call(attend, *args, **kwargs)

    setattr(attention, ORIGINAL, original)
    return attention
