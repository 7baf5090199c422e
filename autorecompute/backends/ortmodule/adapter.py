"""Lets ORTModule 1.19.2 run on a PyTorch newer than the one it was written for.

ORTModule's last release came before torch 2.7. What has moved since is put back here, before ORTModule is imported
for the first time:

* since 2.9 the TorchScript exporter lives in ``torch.onnx._internal.torchscript_exporter``;
* since 2.9 ``torch.onnx.symbolic_opset9`` lacks the functions that ORTModule exports convolutions with;
* since 2.9 ``torch.onnx.export`` prefers the dynamo exporter, which cannot serve ORTModule; a script's own exports keep
  it;
* since 2.7 the ``torch_interop_utils`` extension misses a symbol that torch no longer exports;
* the CPU builds of current torch raise from ``torch.cuda.nvtx``, which ORT's training utilities call on every step;
* ORT's CUDA build wants CUDA libraries that the loader does not find among the wheels, mostly those of CUDA 11.

Each repair looks whether it is needed; on torch 2.4 to 2.6 none but the last is. On any torch, operators that ORTModule
cannot train are exported otherwise (``symbolics.py``), and a variable of ours reaches an option that no variable of
ORTModule's own does (``probe.py``).
"""

from __future__ import annotations

import importlib
import os
import sys
import types
from typing import TYPE_CHECKING, Any

from autorecompute.backends.imports import when_imported
from autorecompute.backends.ortmodule import cuda_libraries, probe
from autorecompute.backends.ortmodule.distributions import build_information, parse_release
from autorecompute.backends.ortmodule.export_options import add_options

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Repairs what ORTModule needs of the installed torch, and returns the names of the repairs made.

    What is exported otherwise on any torch is not among them.

    Calling it again is harmless. It must come before the first import of ``onnxruntime.training.ortmodule``.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    repairs: dict[str, Callable[[Any], bool]] = {
        "exporter modules": _restore_exporter_modules,
        "convolutions": _restore_convolutions,
        "TorchScript export": _export_by_torchscript,
        "custom autograd stand-in": _stand_in_for_interop,
        "nvtx": _silence_nvtx,
        "CUDA libraries": _preload_cuda,
        "plan probe": lambda _: probe.install(),
    }
    when_imported(SYMBOLICS, _export_more_operators)
    return tuple(name for name, repair in repairs.items() if repair(torch))


def runs_as_it_is(torch_version: str) -> bool:
    """Tell whether this torch needs no repair: ``torch_interop_utils``, for custom autograd functions, builds there."""
    return parse_release(torch_version) < (2, 7)


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


def _export_by_torchscript(torch: Any) -> bool:
    return not runs_as_it_is(torch.__version__) and add_options(_torchscript_options)


def _torchscript_options() -> dict[str, bool]:
    # Inlining would replace a custom backward by the derivative of its forward, silently: better to fail.
    return {"dynamo": False, "autograd_inlining": False}


def _stand_in_for_interop(torch: Any) -> bool:
    if runs_as_it_is(torch.__version__) or INTEROP in sys.modules:
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
        return True
    return False


def _preload_cuda(torch: Any) -> bool:
    libraries = cuda_libraries.of_build(build_information().get("cuda_version") or "")
    return bool(torch.cuda.is_available()) and bool(cuda_libraries.preload(libraries))


def _export_more_operators(registry: Any) -> None:
    from autorecompute.backends.ortmodule import symbolics

    symbolics.register(registry)


def _no_range(*_: object) -> None:
    """Stand for an nvtx range where torch was built without CUDA."""
