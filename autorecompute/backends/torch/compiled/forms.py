"""Forms of compiled models, and the compilations of this process."""

from __future__ import annotations

import inspect
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch._dynamo.callback import callback_handler
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from autorecompute.backends.torch.find.refusals import Reason, RefusalError
from autorecompute.backends.torch.find.storages import Storages
from autorecompute.backends.torch.find.structure import is_within, structure_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor
    from torch.nn import Module


_began: list[float] = []  # when the compilation that runs began
_seconds: list[float] = []  # of each compilation that nobody has asked for yet


def follow_compiler() -> None:
    """Add up the time in which the compiler of this process is at work, from now on."""
    if _begin not in callback_handler.start_callbacks:
        callback_handler.register_start_callback(_begin)
        callback_handler.register_end_callback(_end)


def take_compile_seconds() -> float:
    """Return the seconds since the last call."""
    seconds = sum(_seconds, 0.0)
    _seconds.clear()
    return seconds


def _begin(*_event: object) -> None:
    _began[:] = [time.perf_counter()]


def _end(*_event: object) -> None:
    if _began:
        _seconds.append(time.perf_counter() - _began.pop())


MEMORY = "[memory]"  # the name of the profiler's events that say that memory came or went


class AllocatedLive:
    """Counts what is allocated and freed between two calls that a script lies between.

    Compiled code makes its tensors past the dispatcher, where those of eager code are seen. The profiler sees every
    allocation. It does not know the size of what was there before it: tensors that are known at the start are followed.

    ``known`` returns the tensors that are alive when a step begins. ``held`` are the bytes that this process has held
    between two steps in earlier measurements, which the next ones join.
    """

    def __init__(self, known: Callable[[], Iterable[Tensor]], held: list[int] | None = None) -> None:
        self._known, self._held = known, [] if held is None else held
        self._profile: Any = None
        self._sizes: dict[int, int] = {}
        self._freed: list[tuple[int, int]] = []

    def start(self) -> None:
        """Begin a step."""
        self._storages = Storages(self._gone)
        self._sizes, self._freed = {}, []
        for tensor in self._known():
            number, size = self._storages.see(tensor)
            if size:
                self._sizes[number] = size
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False)
        self._profile.__enter__()

    def stop(self) -> int:
        """Return the most bytes alive beyond those that were at the start."""
        profiled, self._profile = self._profile, None
        profiled.__exit__(None, None, None)
        self._sizes.clear()
        events = profiled.profiler.kineto_results.events()
        changes: list[tuple[int, int]] = [
            (event.start_ns(), event.nbytes()) for event in events if event.name() == MEMORY
        ]
        in_order = sorted((*changes, *self._freed), key=lambda change: change[0])
        return max(itertools.accumulate((change for _, change in in_order), initial=0))

    def held_bytes(self, measured_bytes: int) -> int:
        """Return the bytes that a process that compiles this config alone would hold between two steps.

        Each compilation leaves some megabytes behind. The model, its optimizer and its batch are held whatever is
        recomputed, so it is the least that was held before the compiler had been at work often.
        """
        self._held.append(measured_bytes)
        return min(self._held)

    def _gone(self, number: int) -> None:
        size = self._sizes.pop(number, 0)
        if size and self._profile is not None:
            self._freed.append((time.time_ns(), -size))


MEASURED = "that of compiled code can only be guessed from its graph, so the search relies on its trials"
"""Why no peak is forecast."""

_NEXT = "_torchdynamo_orig_backend"  # under this name each part of dynamo has the one that it calls
INNER = "_orig_mod"  # under this name the module that torch.compile(module) returns holds the module that it was given


def is_compiled(module: Module) -> bool:
    """Tell whether ``torch.compile`` runs this very module."""
    return INNER in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def compiled_paths(model: Module) -> list[str]:
    """Return the paths of the modules that ``torch.compile`` runs, each with all that is in it."""
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


def refusals_of_compiled(model: Module) -> list[RefusalError]:
    """Return what keeps a compiled model from being tuned, seen before it is run."""
    settings = [_settings_of(module) for module in model.modules() if is_compiled(module)]
    on_card = any(parameter.device.type == "cuda" for parameter in model.parameters())
    from torch._inductor import custom_graph_pass  # it takes a second

    reasons = (
        (Reason.COMPILED_TORCH, not hasattr(custom_graph_pass, "CustomPartitionerFn")),
        (Reason.COMPILER, any(setting is None for setting in settings)),
        (Reason.CUDA_GRAPHS, on_card and any((setting or {}).get("triton.cudagraphs") for setting in settings)),
        (Reason.COMPILED_RANKS, torch.distributed.is_available() and torch.distributed.is_initialized()),
    )
    return [RefusalError(reason) for reason, is_so in reasons if is_so][:1]


def _settings_of(module: Module) -> dict[str, Any] | None:
    """Return inductor's options; ``None`` of another compiler.

    What torch tells itself of the compiler behind dynamo is missing with ``fullgraph=True``.
    """
    found: Any
    if INNER in module._modules:
        found = vars(module)["dynamo_ctx"].callback
    else:
        found = inspect.getclosurevars(module._compiled_call_impl).nonlocals.get("callback")
    while (inner := getattr(found, _NEXT, None)) is not None:
        found = inner
    tell = getattr(found, "get_compiler_config", None)
    return tell() if tell is not None else None


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
