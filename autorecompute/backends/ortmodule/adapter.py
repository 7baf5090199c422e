"""Makes ORTModule run on versions of PyTorch that came after it."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from autorecompute.backends.ortmodule.controller import PROBE_VARIABLE
from autorecompute.backends.ortmodule.installation import build_information, of_build, preload, runs_as_it_is
from autorecompute.backends.registry import when_imported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def put_around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Return a decorator: its function is called in the place of another one, and is given that one first."""
    original = getattr(owner, name)

    def put(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(original, *args, **kwargs)

        setattr(owner, name, call)

    return put


def add_options(options: Callable[[], Mapping[str, Any]]) -> bool:
    """Pass more keyword arguments to ``torch.onnx.export`` wherever ORTModule calls it, over those of its own.

    The function is asked at each export; where two give the same option, the first one has it. Return True if it is
    new: a second time, nothing more happens.
    """
    import torch

    added = getattr(torch.onnx.export, "added_options", [])
    if options in added:
        return False

    # ORTModule reads the signature of the function to decide what it may pass: functools.wraps keeps it visible.
    @put_around(torch.onnx, "export")
    def export_with_options(export: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]).__module__.startswith(ORTMODULE):
            kwargs.update(options())
        return export(*args, **kwargs)

    torch.onnx.export.added_options = [*added, options]
    return True


def install_probe_config() -> bool:
    """Have ORTModule's options read the variable, as soon as they are imported; say whether it is set."""
    is_set = bool(os.environ.get(PROBE_VARIABLE))
    if is_set:
        when_imported(f"{ORTMODULE}.options", _read_probe_too)
    return is_set


def _read_probe_too(options: Any) -> None:
    """Have every set of options that is made from now on read our variable after ORT's own."""

    @put_around(options._RuntimeOptions, "_override_from_env_vars")  # noqa: SLF001
    def read_all(read: Callable[[Any], None], chosen: Any) -> None:
        read(chosen)
        # A level looks within layers by itself.
        if chosen.memory_optimization_level == 0:
            chosen.recompute_probe_config = os.environ.get(PROBE_VARIABLE, chosen.recompute_probe_config)


ORTMODULE = "onnxruntime.training.ortmodule"
INTEROP = f"{ORTMODULE}.torch_cpp_extensions.torch_interop_utils"
SYMBOLICS = f"{ORTMODULE}._custom_op_symbolic_registry"
EXPORTER = "torch.onnx._internal.torchscript_exporter"

MOVED_EXPORTER_MODULES = {
    "torch.onnx._internal.jit_utils": f"{EXPORTER}.jit_utils",
    "torch.onnx._internal.registration": f"{EXPORTER}.registration",
    "torch.onnx._globals": f"{EXPORTER}._globals",
    "torch.onnx._type_utils": f"{EXPORTER}._type_utils",
}


def adapt() -> tuple[str, ...]:
    """Repair what ORTModule needs of the installed torch, and return the names of the repairs made.

    Calling it again is harmless. It must come before the first import of ``onnxruntime.training.ortmodule``.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    is_old = runs_as_it_is(torch.__version__)
    repairs: dict[str, Callable[[Any], bool]] = {
        "exporter modules": _restore_exporter_modules,
        "convolutions": _restore_convolutions,
        "TorchScript export": lambda _: not is_old and add_options(_torchscript_options),
        "custom autograd stand-in": lambda _: not is_old and _stand_in_for_interop(),
        "nvtx": _silence_nvtx,
        "CUDA libraries": _preload_cuda,
        "plan probe": lambda _: install_probe_config(),
    }
    when_imported(SYMBOLICS, _export_more_operators)
    return tuple(name for name, repair in repairs.items() if repair(torch))


def _restore_exporter_modules(_: Any) -> bool:
    missing = [old for old, new in MOVED_EXPORTER_MODULES.items() if _is_missing(old) and not _is_missing(new)]
    for old in missing:
        module = importlib.import_module(MOVED_EXPORTER_MODULES[old])
        parent, _, name = old.rpartition(".")
        sys.modules[old] = module
        setattr(importlib.import_module(parent), name, module)
    return bool(missing)


def _restore_convolutions(_: Any) -> bool:
    opset = importlib.import_module("torch.onnx.symbolic_opset9")
    if hasattr(opset, "_convolution"):
        return False
    exporter = importlib.import_module(f"{EXPORTER}.symbolic_opset9")
    for name in ("_convolution", "_convolution_mode"):
        setattr(opset, name, getattr(exporter, name))
    return True


def _is_missing(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        return True
    return False


def _torchscript_options() -> dict[str, bool]:
    # Inlining would replace a custom backward by the derivative of its forward, silently: better to fail.
    return {"dynamo": False, "autograd_inlining": False}


def _stand_in_for_interop() -> bool:
    if INTEROP in sys.modules:
        return False
    os.environ["ORTMODULE_ENABLE_CUSTOM_AUTOGRAD"] = "0"
    stand_in = types.ModuleType(INTEROP)
    stand_in.clear_all_grad_fns = lambda: None  # type: ignore[attr-defined]
    sys.modules[INTEROP] = stand_in
    return True


def _silence_nvtx(torch: Any) -> bool:
    if torch.version.cuda is not None or torch.cuda.nvtx.range_push is _no_range:
        return False
    try:
        torch.cuda.nvtx.range_push("")
        torch.cuda.nvtx.range_pop()
    except RuntimeError:
        torch.cuda.nvtx.range_push = torch.cuda.nvtx.range_pop = _no_range
    return torch.cuda.nvtx.range_push is _no_range


def _preload_cuda(torch: Any) -> bool:
    libraries = of_build(build_information().get("cuda_version") or "")
    return bool(torch.cuda.is_available()) and bool(preload(libraries))


def _export_more_operators(registry: Any) -> None:
    from autorecompute.backends.ortmodule import symbolics

    symbolics.register(registry)


def _no_range(*_: object) -> None:
    """Stand for an nvtx range where torch was built without CUDA."""
