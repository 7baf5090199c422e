"""A step that holds one block's activations at a time, whatever is recomputed: gradients without recompute fit with it.

Each block is called without autograd first, and in the backward pass once more with it. What is recomputed in the block
is recomputed in that second call as in any other. Random numbers are not put back for it: a step computes something
else than one that is run as a whole, and two such steps on the same random numbers compute the same.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree

from autorecompute.backends.torch.backward import gradients as gradients_of
from autorecompute.backends.torch.interception import around_of, can_be_intercepted, put_around
from autorecompute.backends.torch.key_values import can_have_its_own, has_cache, with_its_own
from autorecompute.backends.torch.untouched import AUTOCAST_DEVICES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch.nn import Module

    Context = contextlib.AbstractContextManager[object]


_A_TENSOR = object()
"""Stands where a block returned one."""


@contextlib.contextmanager
def block_by_block(blocks: Iterable[Module]) -> Iterator[Tensor]:
    """Inside, calls of these modules keep nothing but their inputs; what is around a module stays within its call.

    Gives a tensor whose gradient has to be asked for, as the blocks' weights are not in the
    graph: their hooks see their gradients, once for each call of a block. Its own gradient is none.
    """
    able = [block for block in blocks if can_be_intercepted(block)]
    before, asked = [around_of(block) for block in able], torch.empty(0, requires_grad=True)
    try:
        for block, arounds in zip(able, before, strict=True):
            put_around(block, [functools.partial(_around, asked), *arounds])
        yield asked
    finally:
        for block, arounds in zip(able, before, strict=True):
            put_around(block, arounds)


def _around(asked: Tensor, forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
    values = (*args, *kwargs.values())
    if not torch.is_grad_enabled() or not can_have_its_own(module, values):
        return forward(*args, **kwargs)
    if has_cache(values):
        forward, args, kwargs = with_its_own(forward, args, kwargs)
    call = _Call(forward, module, args, kwargs)
    results = _Again.apply(call, asked, *call.tensors)
    return call.result_of(results)


class _Call:
    """A block's call, which can be made again.

    Args:
        forward: What is called.
        module: The block.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Attributes:
        tensors: The tensors among the arguments, each once: code asks whether two arguments are the same.
        parameters: The block's weights that are trained.
    """

    def __init__(
        self, forward: Callable[..., Any], module: Module, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        self._forward, self._autocasts = forward, _autocasts()
        self._given, self._form = _pytree.tree_flatten((tuple(args), kwargs))
        self.tensors = list({id(value): value for value in self._given if isinstance(value, Tensor)}.values())
        self._places = {id(tensor): place for place, tensor in enumerate(self.tensors)}
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._returned: list[Any] = []
        self._returned_form: Any = None

    def run(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Make the call with these in place of its tensors; give the tensors that it returns."""
        values = [tensors[self._places[id(value)]] if isinstance(value, Tensor) else value for value in self._given]
        args, kwargs = _pytree.tree_unflatten(values, self._form)
        with contextlib.ExitStack() as stack:
            for context in self._autocasts():
                stack.enter_context(context)
            self._returned, self._returned_form = _pytree.tree_flatten(self._forward(*args, **kwargs))
        results = [value for value in self._returned if isinstance(value, Tensor)]
        self._returned = [_A_TENSOR if isinstance(value, Tensor) else value for value in self._returned]
        return results

    def result_of(self, results: Iterable[Tensor]) -> Any:
        """Return what the block returned, with these as its tensors."""
        left = iter(results)
        values = [next(left) if value is _A_TENSOR else value for value in self._returned]
        return _pytree.tree_unflatten(values, self._returned_form)


def _autocasts() -> Callable[[], list[Context]]:
    """Make contexts in which autocast is as it is now, without casts of weights that were made without autograd."""
    on = [device for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)]
    dtypes = {device: torch.get_autocast_dtype(device) for device in on}
    return lambda: [torch.autocast(device, dtype=dtype, cache_enabled=False) for device, dtype in dtypes.items()]


class _Again(torch.autograd.Function):  # type: ignore[misc]
    """Calls a block without autograd, and in the backward pass once more with it."""

    @staticmethod
    def forward(ctx: Any, call: _Call, _asked: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call, ctx.needs = call, [tensor.requires_grad for tensor in tensors]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        # A block may change its input in place, and may return what it has not made: that is not to be in the graph.
        results = [result.detach() for result in call.run([tensor.clone() for tensor in tensors])]
        ctx.mark_non_differentiable(*(one for one in results if not one.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [
            tensor.detach().requires_grad_(needs) for tensor, needs in zip(ctx.saved_tensors, ctx.needs, strict=True)
        ]
        with torch.enable_grad():
            results = ctx.call.run([tensor.clone() for tensor in given])
        pairs = [
            (result, gradient)
            for result, gradient in zip(results, gradients, strict=True)
            if gradient is not None and result.requires_grad
        ]
        wanted = [*(tensor for tensor in given if tensor.requires_grad), *ctx.call.parameters]
        if not pairs or not wanted:
            return (None,) * (2 + len(given))
        # Hooks of the weights see their gradients, which is all that is wanted of them.
        outputs, incoming = zip(*pairs, strict=True)
        found = iter(gradients_of(outputs, wanted, incoming))
        return (None, None, *(next(found) if needs else None for needs in ctx.needs))
