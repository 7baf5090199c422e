"""Reasons to leave a model, or a part of it, without recompute."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointError

from autorecompute.backends.common import describe_out_of_memory, is_out_of_memory
from autorecompute.backends.torch.find.structure import is_named, is_sharded
from autorecompute.errors import AutorecomputeError, chain_of, last_line
from autorecompute.measurement import Outcome
from autorecompute.units import MIB

if TYPE_CHECKING:
    from torch.nn import Module


class Reason(enum.Enum):
    """Reason against a plan, or a model; a sentence about a place."""

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
    GRAPHED = (
        "{place} is replayed by a CUDA graph (make_graphed_callables), which runs the same kernels in the same memory "
        "in every step: leave the graph out to recompute in it."
    )
    SCRIPTED = "{place} is a TorchScript module or has one in it, whose forward cannot be run through another one."
    ORTMODULE = "{place} is an ORTModule: tune it with --backend ortmodule."
    SHARDED = (
        "{place} is sharded by FSDP: take fully_shard on the model as a whole, and a torch that can reset it (2.13)."
    )
    SHARDED_OPERATORS = "{place} is sharded by fully_shard, so single operators are not offered."
    SHARDED_HEAD = "{place} is sharded by fully_shard, so its logits are not made in chunks."
    HEAD = "{place} is compiled or recomputed by the script itself, so its logits are not made in chunks."
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


class RefusalError(AutorecomputeError):
    """A place that is left as it is; raised where it is the whole model.

    Attributes:
        place: A module group or an operator's site; empty for the whole model.
    """

    def __init__(self, reason: Reason, place: str = "") -> None:
        super().__init__(reason, place)
        self.reason, self.place = reason, place

    def __str__(self) -> str:
        sentence = self.reason.value.format(place=self.place or "the model")
        return sentence if self.place else sentence[0].upper() + sentence[1:]


def refusals_of_model(model: Module) -> list[RefusalError]:
    """Return what keeps the whole model from being recomputed, seen before it is run."""
    sharded = ("FSDP", "FullyShardedDataParallel")
    is_in_parts = any(is_named(module, sharded, "torch.distributed") for module in model.modules())
    # Outside of a step, torch has to be able to forget the run.
    can_run_again = is_sharded(model) and hasattr(model, "reset_iter_state")
    reasons = (
        (Reason.ORTMODULE, is_named(model, "ORTModule", "onnxruntime")),
        (Reason.TRANSFORMED, is_transformed()),
        (Reason.GRAPHED, any(_is_graphed(module) for module in model.modules())),
        (Reason.SCRIPTED, any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())),
        (Reason.SHARDED, is_in_parts and not can_run_again),
        (Reason.TENSOR_PARALLEL, any(_is_spread(value, model) for value in model.parameters())),
    )
    return [RefusalError(reason) for reason, is_so in reasons if is_so][:1]


def _is_graphed(module: Module) -> bool:
    """Tell whether ``torch.cuda.make_graphed_callables`` has put a replay in the place of its forward."""
    return getattr(vars(module).get("forward"), "__module__", None) == "torch.cuda.graphs"


def is_transformed() -> bool:
    """Tell whether a transform of ``torch.func`` runs what is called now."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def _is_spread(parameter: Any, model: Module) -> bool:
    """Tell whether a parameter is split over ranks by more than ``fully_shard``."""
    if not is_named(parameter, "DTensor", "torch.distributed"):
        return False
    return not is_sharded(model) or sum(placement.is_shard() for placement in parameter.placements) > 1


def unwrapped(model: Module) -> Module:
    """Return the module that is trained: what ``DistributedDataParallel`` holds, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


NOTHING_TRAINED = (
    "No module that holds the parameters of a torch optimizer was called in training mode. Call the model itself, "
    "model(inputs), rather than a method of it, and after the optimizer was made. Where torch.compile runs a function "
    "around that call, give it the model instead."
)

NO_HANDLE = ("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
"""Messages of CUDA's libraries that find no memory for themselves; they say it of other faults as well."""

HANDLE_BYTES = 256 * MIB  # they find it where so much is free outside of the allocator


def classify(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome that an exception stands for, and a sentence about it."""
    links = chain_of(error)
    text = "\n".join(str(link) for link in links)
    if isinstance(error, torch.cuda.OutOfMemoryError) or is_out_of_memory(error, text) or _found_no_room(text):
        return Outcome.OOM, describe_out_of_memory(error)
    for link in links:
        if isinstance(link, RefusalError):
            return Outcome.EXPORT_ERROR, f"The model cannot be recomputed: {link}"
        if isinstance(link, AutorecomputeError):
            return Outcome.SCRIPT_ERROR, str(link)
        if isinstance(link, CheckpointError):
            return Outcome.SCRIPT_ERROR, (
                "A recomputed module did not save the same tensors when it ran again: what it computes depends on more "
                "than its inputs."
            )
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {last_line(error)}"


def _found_no_room(text: str) -> bool:
    """Tell whether one of CUDA's libraries could not begin, on a card that is full."""
    if not any(known in text for known in NO_HANDLE) or not torch.cuda.is_initialized():
        return False
    try:
        free_bytes, _ = torch.cuda.mem_get_info()
    except RuntimeError:  # a fault of a kernel is told by every later call
        return False
    return bool(free_bytes < HANDLE_BYTES)


def why_unsplittable(model: Module) -> str:
    """Return why a model computes something else on halves of a batch; empty where nothing says so."""
    names = [name for name, one in model.named_modules() if isinstance(one, _BatchNorm) and one.training]
    if not names:
        return ""
    others = f", and {len(names) - 1} more" if len(names) > 1 else ""
    return f"BatchNorm ({names[0] or 'the model'}{others}) takes its statistics over one pass"
