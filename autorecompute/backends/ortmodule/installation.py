"""The distributions of ONNX Runtime and PyTorch that are installed, and the CUDA libraries that they bring."""

from __future__ import annotations

import ctypes
import importlib.util
import re
import runpy
import shlex
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def version_of(distribution: str) -> str | None:
    """Return the version that pip recorded; ``None`` where the distribution is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def parse_release(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version such as ``2.13.0+cpu``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def package_folder() -> Path | None:
    """Return the folder of the installed ``onnxruntime``, which is not imported; ``None`` where there is none."""
    spec = importlib.util.find_spec("onnxruntime")
    # An uninstalled ORT leaves the extensions built into it behind: a folder without the package in it.
    return Path(spec.origin).parent if spec and spec.origin else None


def build_information() -> dict[str, Any]:
    """Return the installed ORT's build information: ``package_name``, ``cuda_version``, ``rocm_version``."""
    folder = package_folder()
    file = folder / "capi" / "build_and_package_info.py" if folder else None
    return runpy.run_path(str(file)) if file and file.is_file() else {}


def owns_file(distribution: str, name: str, packages: Path) -> bool:
    """Tell whether the file is the one that the distribution installed, and not another's of the same path.

    Args:
        distribution: An installed one.
        name: The beginning of the file's name.
        packages: The folder that the package is imported from.
    """
    record = next((file for file in metadata.files(distribution) or () if file.name.startswith(name)), None)
    if record is None:
        return False
    file = packages / record
    return file.is_file() and file.stat().st_size == record.size


def pip(arguments: str) -> str:
    """Return the command line that has pip ``install …`` or ``uninstall …`` for the running interpreter."""
    python = shlex.quote(sys.executable)
    # Not find_spec: at the name of pip, setuptools switches this process back to the standard library's distutils.
    if version_of("pip"):
        yes = arguments.replace("uninstall", "uninstall -y", 1)
        return f"{python} -m pip {yes}"
    verb, _, rest = arguments.partition(" ")
    return f"uv pip {verb} --python {python} {rest}"  # uv's environments hold no pip of their own


LIBRARIES = {
    11: {
        "libcudart.so.11.0": "cuda_runtime",
        "libcublasLt.so.11": "cublas",
        "libcublas.so.11": "cublas",
        "libcudnn.so.8": "cudnn",
        "libcufft.so.10": "cufft",
        "libcurand.so.10": "curand",
    },
    # Builds for CUDA 12 differ in the cuDNN that they want, and their version does not tell: it is not looked for.
    12: {
        "libcudart.so.12": "cuda_runtime",
        "libcublasLt.so.12": "cublas",
        "libcublas.so.12": "cublas",
        "libcufft.so.11": "cufft",
        "libcurand.so.10": "curand",
    },
}
"""For each major version of CUDA the libraries by name, each after those it needs, with its folder below ``nvidia``."""


def of_build(cuda_version: str) -> Mapping[str, str]:
    """Return the libraries of an ORT for this CUDA, which is empty for a CPU; nothing where they are not known."""
    release = parse_release(cuda_version)
    return LIBRARIES.get(release[0], {}) if release else {}


def wheel_of(folder: str, cuda_version: str) -> str:
    """Return the wheel that brings the libraries of a folder, as pip takes it."""
    wheel = f"nvidia-{folder.replace('_', '-')}-cu{parse_release(cuda_version)[0]}"
    return f"'{wheel}==8.9.*'" if folder == "cudnn" else wheel


def preload(libraries: Mapping[str, str]) -> tuple[str, ...]:
    """Load from the wheels what the loader does not find by itself; return the names of what was loaded."""
    wheels = Path(sysconfig.get_path("purelib"), "nvidia")
    return tuple(
        name for name in libraries if not _loads(name) and _loads(str(wheels / libraries[name] / "lib" / name))
    )


def lacking(libraries: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the libraries that neither the loader nor the wheels have."""
    preload(libraries)
    return tuple(name for name in libraries if not _loads(name))


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


def runs_as_it_is(torch_version: str) -> bool:
    """Tell whether this torch needs no repair: ``torch_interop_utils``, for custom autograd functions, builds there."""
    return parse_release(torch_version) < (2, 7)
