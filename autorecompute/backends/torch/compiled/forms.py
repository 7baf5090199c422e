"""How a script compiles its model, and why a compiled model may not be tuned."""

from __future__ import annotations

import inspect
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.refusals import Reason, Refusal
from autorecompute.backends.torch.structure import is_within, structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from torch import Tensor
    from torch.nn import Module

    from autorecompute.backends.torch.compiled.live import AllocatedLive

MEASURED = "that of compiled code can only be guessed from its graph, so the search relies on its trials"
"""Why no peak is forecast."""

_NEXT = "_torchdynamo_orig_backend"
"""Under this name each part of dynamo has the one that it calls."""

INNER = "_orig_mod"
"""Under this name the module that ``torch.compile(module)`` returns holds the module that it was given."""


def is_compiled(module: Module) -> bool:
    """Tell whether ``torch.compile`` runs this very module."""
    return INNER in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def compiled_paths(model: Module) -> list[str]:
    """Paths of the modules that ``torch.compile`` runs, each with all that is in it."""
    return [path for path, module in model.named_modules() if is_compiled(module)]


def has_compiled(model: Module) -> bool:
    """Tell whether ``torch.compile`` runs the model, or every block of it.

    A compiled part of another one is left alone.
    """
    if is_compiled(model):
        return True
    compiled = compiled_paths(model)
    if not compiled:
        return False
    units = structure_of(model).units
    return bool(units) and all(any(is_within(unit, path) for path in compiled) for unit in units)


def original_of(model: Module) -> Module:
    """Return the module that the script wrote: what ``torch.compile(module)`` was given, or the model itself."""
    return getattr(model, INNER, model)


def refusals_of_compiled(model: Module) -> Iterator[Refusal]:
    """Yield what keeps a compiled model from being tuned, seen before it is run."""
    settings = [_settings_of(module) for module in model.modules() if is_compiled(module)]
    on_card = any(parameter.device.type == "cuda" for parameter in model.parameters())
    for reason, is_so in (
        (Reason.COMPILED_TORCH, not _tells_partitions()),
        (Reason.COMPILER, any(setting is None for setting in settings)),
        (Reason.CUDA_GRAPHS, on_card and any((setting or {}).get("triton.cudagraphs") for setting in settings)),
        (Reason.COMPILED_RANKS, torch.distributed.is_available() and torch.distributed.is_initialized()),
    ):
        if is_so:
            yield Refusal(reason)
            return


def _tells_partitions() -> bool:
    """Tell whether this torch can be asked how it cuts a joint graph."""
    try:
        from torch._inductor import custom_graph_pass
    except ImportError:
        return False
    return hasattr(custom_graph_pass, "CustomPartitionerFn")


def _settings_of(module: Module) -> dict[str, Any] | None:
    """Return what inductor is asked for; ``None`` of another compiler."""
    tell = getattr(_backend_of(module), "get_compiler_config", None)
    return tell() if tell is not None else None


def _backend_of(module: Module) -> Any:
    """Return the compiler behind dynamo. What torch tells of it itself is missing with ``fullgraph=True``."""
    if INNER in module._modules:
        found = vars(module)["dynamo_ctx"].callback
    else:
        found = inspect.getclosurevars(module._compiled_call_impl).nonlocals.get("callback")
    while (inner := getattr(found, _NEXT, None)) is not None:
        found = inner
    return found


def eagerly() -> AbstractContextManager[object]:
    """Compiled modules and functions run as if they were not compiled.

    Under a dispatch mode of ours the compiler would leave what it meets as it is, to the end of the process. Before
    torch 2.6 it cannot be told to do nothing.
    """
    set_stance: Callable[[str], AbstractContextManager[object]] | None = getattr(torch.compiler, "set_stance", None)
    return set_stance("force_eager") if set_stance is not None else nullcontext()


def may_compile(model: Module) -> bool:
    """Tell whether the compiler may come to run a model, a part of it, or a function that its forward calls."""
    stance = getattr(getattr(sys.modules.get("torch._dynamo.eval_frame"), "_stance", None), "stance", "")
    return stance != "force_eager" and (is_compiling() or bool(compiled_paths(model)))


def compiles_under_modes() -> bool:
    """Tell whether the compiler compiles in a checkpoint that keeps results; an older one skips code there for good."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def is_compiling() -> bool:
    """Tell whether the script has had the compiler run anything so far: a model, a part of one, or a function."""
    frames = sys.modules.get("torch._dynamo.convert_frame")
    return bool(getattr(getattr(frames, "input_codes", None), "seen", ()))


class CompiledRun:
    """What is followed of a process whose model is compiled; the compiler and the profiler are imported for it."""

    def __init__(self) -> None:
        from autorecompute.backends.torch.compiled.clock import CLOCK
        from autorecompute.backends.torch.compiled.live import AllocatedLive, LeastHeld

        self._clock, self._live, self._held = CLOCK, AllocatedLive, LeastHeld()

    def take_seconds(self) -> float:
        """Seconds since the last call in which the compiler was at work."""
        return self._clock.take()

    def live_meter(self, known: Callable[[], Iterable[Tensor]]) -> AllocatedLive:
        """Return what counts live tensors in a step of compiled code.

        Args:
            known: Tells the tensors that are alive when the step begins.
        """
        return self._live(known, self._held)
