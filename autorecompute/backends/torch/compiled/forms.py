"""How a script compiles its model, and why a compiled model may not be tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from autorecompute.backends.torch.refusals import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.nn import Module

    from autorecompute.backends.torch.compiled.live import AllocatedLive

INNER = "_orig_mod"
"""Under this name the module that ``torch.compile(module)`` returns holds the module that it was given."""


def is_compiled(module: Module) -> bool:
    """Whether ``torch.compile`` runs this very module."""
    return INNER in module._modules or getattr(module, "_compiled_call_impl", None) is not None


def has_compiled(model: Module) -> bool:
    """Whether ``torch.compile`` runs the model, or a module in it."""
    return any(map(is_compiled, model.modules()))


def original_of(model: Module) -> Module:
    """The module that the script wrote: what ``torch.compile(module)`` was given, or the model itself."""
    return model._modules.get(INNER) or model


def refusals_of_compiled(model: Module) -> Iterator[Refusal]:
    """What keeps a compiled model from being tuned, seen before it is run."""
    settings = [_settings_of(module) for module in model.modules() if is_compiled(module)]
    on_card = any(parameter.device.type == "cuda" for parameter in model.parameters())
    for reason, is_so in (
        (Reason.COMPILER, any(setting is None for setting in settings)),
        (Reason.CUDA_GRAPHS, on_card and any((setting or {}).get("triton.cudagraphs") for setting in settings)),
        (Reason.COMPILED_RANKS, torch.distributed.is_available() and torch.distributed.is_initialized()),
    ):
        if is_so:
            yield Refusal(reason)
            return


def _settings_of(module: Module) -> dict[str, Any] | None:
    """What inductor is asked for; ``None`` of another compiler."""
    source = module if INNER in module._modules else module._compiled_call_impl
    tell = getattr(source, "get_compiler_config", None)
    return tell() if tell is not None else None


def eagerly() -> AbstractContextManager[object]:
    """Compiled modules run as if they were not compiled."""
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def allocated_live() -> type[AllocatedLive]:
    """What counts live tensors in a step of compiled code; the profiler is imported where it is needed."""
    from autorecompute.backends.torch.compiled.live import AllocatedLive

    return AllocatedLive


def take_compile_seconds() -> float:
    """Seconds since the last call in which the compiler was at work; it is imported with the first compiled model."""
    from autorecompute.backends.torch.compiled.clock import CLOCK

    return CLOCK.take()
