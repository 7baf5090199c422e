"""Why a model or a place in it is not recomputed, each in one sentence."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from autorecompute.backends.torch.sharded import can_run_again, is_sharded
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.errors import AutorecomputeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module


class Reason(enum.Enum):
    """What stands in the way; a sentence about a place."""

    CACHE = (
        "{place} gets a key-value cache, to which its recompute would append twice: pass use_cache=False in training."
    )
    INPLACE = "{place} changes its input in place, so that it could not be run again with what it was given."
    COMPILED = "{place} is compiled by torch.compile, which decides itself what to recompute."
    COMPILER = "{place} is compiled by another backend than inductor, whose memory budget is not known."
    COMPILED_TORCH = (
        "{place} is compiled, and this torch cannot tell what its compiler would keep: take a later one, or leave "
        "torch.compile out."
    )
    CUDA_GRAPHS = (
        '{place} is compiled with CUDA graphs, whose memory stays: compile it in another mode, such as "default".'
    )
    COMPILED_RANKS = "{place} is compiled and trained by several ranks, which may compile at different times."
    COMPILED_STATISTICS = "{place} is compiled and has running statistics, which its recompute would update twice."
    COMPILED_OPERATORS = (
        "{place} is compiled, and no operators are offered: none is known whose results the compiler keeps by itself."
    )
    COMPILED_BUDGETS = "No memory budget of the compiler is offered, as the model could not be traced: {place}."
    COMPILED_FAKE = (
        "{place} is compiled, and what compiled code holds cannot be told from fake tensors: leave --fake out, or "
        "torch.compile, to see the plans of the model that it compiles."
    )
    SCRIPTED = "{place} is a TorchScript module or has one in it, whose forward cannot be run through another one."
    ORTMODULE = "{place} is an ORTModule: tune it with --backend ortmodule."
    SHARDED = (
        "{place} is sharded by FSDP: take fully_shard on the model as a whole, and a torch that can reset it (2.13)."
    )
    SHARDED_OPERATORS = "{place} is sharded by fully_shard, so single operators are not offered."
    DEVICES = "{place} lies on several devices, and the memory of one is measured: put it on one of them."
    TENSOR_PARALLEL = "{place} has parameters that tensor parallelism has spread over ranks."
    OUTPUT = "{place} returns no tensor that gradients go back through."
    OWN_CHECKPOINT = "{place} is recomputed by the script itself, and is kept as it is."
    OWN_HOOKS = "{place} runs under the script's own saved_tensors_hooks, which would see what recompute drops."
    OWN_GRADIENTS = "{place} takes gradients inside its forward, which goes back through what recompute would drop."
    TRANSFORMED = (
        "{place} is called under transforms of torch.func, such as vmap and grad, which have no backward pass that "
        "could recompute: tune a step that calls model(inputs) and loss.backward(), or train without recompute."
    )
    UNVERIFIED = "{place} is not offered, as its recompute was not bit-identical."


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A place that is left as it is.

    Attributes:
        reason: What stands in the way.
        place: A module group or an operator's site; empty for the whole model.
    """

    reason: Reason
    place: str = ""

    def __str__(self) -> str:
        sentence = self.reason.value.format(place=self.place or "the model")
        return sentence[0].upper() + sentence[1:] if not self.place else sentence


class RefusedModelError(AutorecomputeError):
    """Nothing of the model can be recomputed.

    Args:
        refusal: Why.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def refusals_of_model(model: Module) -> Iterator[Refusal]:
    """Yield what keeps the whole model from being recomputed, seen before it is run."""
    for reason, is_so in (
        (Reason.ORTMODULE, _is_named(model, "ORTModule", "onnxruntime")),
        (Reason.TRANSFORMED, is_transformed()),
        (Reason.SCRIPTED, any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())),
        (Reason.SHARDED, _is_sharded_otherwise(model)),
        (Reason.TENSOR_PARALLEL, any(_is_spread(value, model) for value in model.parameters())),
    ):
        if is_so:
            yield Refusal(reason)
            return


def is_transformed() -> bool:
    """Tell whether a transform of ``torch.func`` runs what is called now."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_sharded_otherwise(model: Module) -> bool:
    """Tell whether parts are sharded, and the model as a whole not in a way in which it can be run again."""
    is_in_parts = any(_is_named(module, "FSDP", "torch.distributed") for module in model.modules())
    return is_in_parts and not can_run_again(model)


def _is_spread(parameter: Any, model: Module) -> bool:
    """Tell whether a parameter is split over ranks by more than ``fully_shard``."""
    if not _is_named(parameter, "DTensor", "torch.distributed"):
        return False
    return not is_sharded(model) or sum(placement.is_shard() for placement in parameter.placements) > 1


def _is_named(value: object, start: str, package: str) -> bool:
    """Tell whether a class of the object has such a name; a class of a package that need not be installed."""
    starts = (start, "FullyShardedDataParallel") if start == "FSDP" else (start,)
    return any(kind.__name__.startswith(starts) and kind.__module__.startswith(package) for kind in type(value).__mro__)


def unwrapped(model: Module) -> Module:
    """Return the module that is trained: what ``DistributedDataParallel`` holds, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def has_gradient(result: Any) -> bool:
    """Tell whether gradients go back through what a module returns."""
    return any(tensor.requires_grad for tensor in tensors_in(result))


def is_hooked() -> bool:
    """Tell whether a tensor that is saved now goes through hooks of the script's."""
    result = torch.ones(1, requires_grad=True).exp()
    try:
        result.grad_fn._raw_saved_result.register_hooks(lambda tensor: tensor, lambda tensor: tensor)
    except RuntimeError:  # there can be one pair of hooks
        return True
    return False
