"""The CUDA 11 libraries that ORT's CUDA provider is linked against, as NVIDIA's wheels bring them.

The wheels put each library in a folder of its own below ``site-packages/nvidia``, where the loader does not look: torch
finds its own CUDA 12 there by itself, ORT 1.19.2 finds nothing. A library that is already loaded serves everyone who
asks for its name, so loading them by their paths, before ORT does, is all it takes.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sysconfig
from pathlib import Path

PROVIDER = "libonnxruntime_providers_cuda.so"

LIBRARIES = {
    "libcudart.so.11.0": ("cuda_runtime", "nvidia-cuda-runtime-cu11"),
    "libcublasLt.so.11": ("cublas", "nvidia-cublas-cu11"),
    "libcublas.so.11": ("cublas", "nvidia-cublas-cu11"),
    "libcudnn.so.8": ("cudnn", "'nvidia-cudnn-cu11==8.9.*'"),
    "libcufft.so.10": ("cufft", "nvidia-cufft-cu11"),
    "libcurand.so.10": ("curand", "nvidia-curand-cu11"),
}
"""By name, each after those it needs: its folder below ``nvidia``, and the wheel that brings it."""


def are_wanted() -> bool:
    """Whether the installed ORT is a CUDA build; ORT is not imported."""
    spec = importlib.util.find_spec("onnxruntime")
    folders = spec.submodule_search_locations or [] if spec else []
    return any(Path(folder, "capi", PROVIDER).is_file() for folder in folders)


def preload() -> tuple[str, ...]:
    """Loads from the wheels what the loader does not find by itself; returns the names of what was loaded."""
    return tuple(name for name in LIBRARIES if not _loads(name) and _loads(str(_file_of(name))))


def lacking() -> tuple[str, ...]:
    """Names of the libraries that neither the loader nor the wheels have."""
    preload()
    return tuple(name for name in LIBRARIES if not _loads(name))


def wheels_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The wheels that bring these libraries, as pip takes them."""
    return tuple(dict.fromkeys(LIBRARIES[name][1] for name in names))


def _file_of(name: str) -> Path:
    return Path(sysconfig.get_path("purelib"), "nvidia", LIBRARIES[name][0], "lib", name)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
