"""Models under ``fully_shard``: run once more, and training goes on as if they had not been.

Every run of such a model gathers its parameters from all ranks. So whoever runs it once more does so on all of them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.nn import Module, Parameter

FSDP_MODULE = "FSDPModule"
"""What ``fully_shard`` makes a module, by its name: it is asked for where no process group may be."""

REDUCES = ("reduce_grads", "all_reduce_grads")


def is_sharded(module: Module) -> bool:
    """Tell whether ``fully_shard`` was applied to this module."""
    return any(
        kind.__name__ == FSDP_MODULE and kind.__module__.startswith("torch.distributed")
        for kind in type(module).__mro__
    )


def can_run_again(model: Module) -> bool:
    """Tell whether a sharded model can be run outside of a step: torch has to be able to forget that run."""
    return is_sharded(model) and hasattr(model, "reset_iter_state")


def gathered(module: Module) -> list[Parameter]:
    """Return the parameters of a module that runs, without those that are not gathered yet."""
    return [parameter for parameter in module.parameters() if not hasattr(parameter, "to_local")]


def is_anywhere(model: Module, is_so: bool) -> bool:  # noqa: FBT001  (what is asked of all ranks)
    """Tell whether it is so on any rank of a sharded model: all of them have to take the same steps."""
    if not is_sharded(model):
        return is_so
    told = torch.tensor(int(is_so), device=next(model.parameters()).device)
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX)
    return bool(told.item())


@contextlib.contextmanager
def forgotten(model: Module) -> Iterator[None]:
    """Whatever the model runs inside is no part of a step; nothing else happens with one that is not sharded."""
    try:
        yield
    finally:
        if is_sharded(model):
            model.reset_iter_state()


def gradients_of(model: Module, loss: Tensor, parameters: Sequence[Parameter]) -> list[Tensor | None]:
    """Return this rank's shards of the gradients, summed over all ranks; leave those that the parameters have."""
    kept = [parameter.grad for parameter in parameters]
    try:
        with _reducing(model):
            for parameter in parameters:
                parameter.grad = None
            loss.backward()  # autograd.grad would find the shards in no graph
        return [_local(parameter.grad) for parameter in parameters]
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _local(gradient: Any) -> Tensor | None:
    return None if gradient is None else getattr(gradient, "to_local", lambda: gradient)()


@contextlib.contextmanager
def _reducing(model: Module) -> Iterator[None]:
    """Have gradients reduced, in a step too that only accumulates them."""
    groups = [group for module in model.modules() if is_sharded(module) for group in _groups(module)]
    kept = [[getattr(group, name) for name in REDUCES] for group in groups]
    try:
        for group in groups:
            for name in REDUCES:
                setattr(group, name, True)
        yield
    finally:
        for group, values in zip(groups, kept, strict=True):
            for name, value in zip(REDUCES, values, strict=True):
                setattr(group, name, value)


def _groups(module: Any) -> Sequence[Any]:
    # What is set by set_requires_gradient_sync() can be read nowhere else.
    groups: Sequence[Any] = module._get_fsdp_state()._fsdp_param_groups
    return groups
