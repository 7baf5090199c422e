"""Finds the CUDA headers that ``torch_gpu_allocator`` is compiled with.

torch's build rules want one CUDA toolkit with an nvcc in it. This extension is plain C++, so the headers will do that
come along with torch's CUDA libraries from pip, except that ``crt`` comes with the compiler's wheel alone.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from autorecompute.backends.ortmodule.distributions import pip

HEADERS = ("cuda_runtime_api.h", "crt/host_defines.h")
USUAL_TOOLKIT = Path("/usr/local/cuda")


def obstacle(cuda: str) -> str:
    """Return a sentence about the headers that are missing; empty where they are all there.

    Args:
        cuda: The CUDA that torch was built with, such as ``12.4``.
    """
    if _find_toolkit(cuda) or (_find_wheel_includes() and _find_runtime(cuda)):
        return ""
    major, minor = map(int, cuda.split(".")[:2])
    # NVIDIA renamed its wheels with CUDA 13, and took crt out of the compiler's.
    wheel = "nvidia-cuda-crt" if major >= 13 else f"nvidia-cuda-nvcc-cu{major}"  # noqa: PLR2004
    runtime = "nvidia-cuda-runtime" if major >= 13 else f"nvidia-cuda-runtime-cu{major}"  # noqa: PLR2004
    pins = " ".join(f"'{name}=={major}.{minor}.*'" for name in (runtime, wheel))
    return f"CUDA's headers are missing. Run: {pip(f'install {pins}')}"


def variables(cuda: str, scratch: Path) -> dict[str, str]:
    """Return the environment variables that lead torch's build rules to the headers and the CUDA runtime.

    Args:
        cuda: The CUDA that torch was built with.
        scratch: Folder that may take a stand-in for a toolkit and lives as long as the build.
    """
    if toolkit := _find_toolkit(cuda):
        return {"CUDA_HOME": str(toolkit)}
    libraries = scratch / "cuda" / "lib64"
    libraries.mkdir(parents=True)
    if runtime := _find_runtime(cuda):
        # The linker looks for the library without its version, and wheels hold no such link.
        (libraries / "libcudart.so").symlink_to(runtime)
    search = [*map(str, _find_wheel_includes()), *filter(None, [os.environ.get("CPATH")])]
    return {"CUDA_HOME": str(libraries.parent), "CPATH": os.pathsep.join(search)}


def _find_toolkit(cuda: str) -> Path | None:
    """Return a toolkit of torch's own CUDA.

    The user's choice, else the usual places, where the major version is torch's.
    """
    if chosen := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(chosen)
    nvcc = shutil.which("nvcc")
    folders = [*([Path(nvcc).resolve().parent.parent] if nvcc else []), USUAL_TOOLKIT]
    library = f"{_runtime_name(cuda)}*"
    return next((folder for folder in folders if any(folder.glob(f"lib64/{library}")) and _has_headers(folder)), None)


def _has_headers(folder: Path) -> bool:
    return all((folder / "include" / header).is_file() for header in HEADERS)


def _find_wheel_includes() -> list[Path]:
    """Return the ``include`` folders of NVIDIA's wheels that hold the headers between them; none if one is missing."""
    folders = []
    for header in HEADERS:
        found = next((path for path in _wheel_folders() if (path / "include" / header).is_file()), None)
        if found is None:
            return []
        folders.append(found / "include")
    return folders


def _find_runtime(cuda: str) -> Path | None:
    name = _runtime_name(cuda)
    return next((path / "lib" / name for path in _wheel_folders() if (path / "lib" / name).is_file()), None)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = map(Path, spec.submodule_search_locations or ()) if spec else ()
    return sorted(folder for root in roots for folder in root.iterdir() if folder.is_dir())


def _runtime_name(cuda: str) -> str:
    return f"libcudart.so.{cuda.partition('.')[0]}"
