"""The CUDA libraries that ORT's CUDA provider is linked against, as NVIDIA's wheels bring them.

The wheels put each library in a folder of its own below ``site-packages/nvidia``, where the loader does not look: torch
finds its own there by itself, ORT finds nothing. A library that is already loaded serves everyone who asks for its
name, so loading them by their paths, before ORT does, is all it takes.
"""

from __future__ import annotations

import ctypes
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.ortmodule.distributions import parse_release

if TYPE_CHECKING:
    from collections.abc import Mapping


class Origin(NamedTuple):
    """Where a library comes from.

    Attributes:
        folder: Its folder below ``nvidia``.
        wheel: What brings it, as pip takes it.
    """

    folder: str
    wheel: str


LIBRARIES = {
    11: {
        "libcudart.so.11.0": Origin("cuda_runtime", "nvidia-cuda-runtime-cu11"),
        "libcublasLt.so.11": Origin("cublas", "nvidia-cublas-cu11"),
        "libcublas.so.11": Origin("cublas", "nvidia-cublas-cu11"),
        "libcudnn.so.8": Origin("cudnn", "'nvidia-cudnn-cu11==8.9.*'"),
        "libcufft.so.10": Origin("cufft", "nvidia-cufft-cu11"),
        "libcurand.so.10": Origin("curand", "nvidia-curand-cu11"),
    },
    # Builds for CUDA 12 differ in the cuDNN that they want, and their version does not tell: it is not looked for.
    12: {
        "libcudart.so.12": Origin("cuda_runtime", "nvidia-cuda-runtime-cu12"),
        "libcublasLt.so.12": Origin("cublas", "nvidia-cublas-cu12"),
        "libcublas.so.12": Origin("cublas", "nvidia-cublas-cu12"),
        "libcufft.so.11": Origin("cufft", "nvidia-cufft-cu12"),
        "libcurand.so.10": Origin("curand", "nvidia-curand-cu12"),
    },
}
"""For each major version of CUDA the libraries by name, each after those it needs."""


def of_build(cuda_version: str) -> Mapping[str, Origin]:
    """Return what an ORT that was built for this CUDA needs; nothing where that is not known.

    Args:
        cuda_version: As ORT's build information has it, empty for a CPU build.
    """
    release = parse_release(cuda_version)
    return LIBRARIES.get(release[0], {}) if release else {}


def preload(libraries: Mapping[str, Origin]) -> tuple[str, ...]:
    """Load from the wheels what the loader does not find by itself; return the names of what was loaded."""
    return tuple(name for name in libraries if not _loads(name) and _loads(str(_file_of(name, libraries[name]))))


def lacking(libraries: Mapping[str, Origin]) -> tuple[str, ...]:
    """Name of the libraries that neither the loader nor the wheels have."""
    preload(libraries)
    return tuple(name for name in libraries if not _loads(name))


def _file_of(name: str, origin: Origin) -> Path:
    return Path(sysconfig.get_path("purelib"), "nvidia", origin.folder, "lib", name)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True
