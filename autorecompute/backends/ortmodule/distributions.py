"""Installed distributions: versions, builds, whether they own their files, and the command that installs others."""

from __future__ import annotations

import importlib.util
import re
import runpy
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


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
    """Return what the installed ORT says of its own build: ``package_name``, ``cuda_version``, ``rocm_version``."""
    folder = package_folder()
    file = folder / "capi" / "build_and_package_info.py" if folder else None
    return runpy.run_path(str(file)) if file and file.is_file() else {}


def owns_file(distribution: str, name: str, packages: Path) -> bool:
    """Tell whether the file is the one that the distribution installed, and not another's of the same path.

    Args:
        distribution: An installed one.
        name: How the file's name begins.
        packages: The folder that the package is imported from.

    Raises:
        importlib.metadata.PackageNotFoundError: the distribution is not installed.
    """
    record = next((file for file in metadata.files(distribution) or () if file.name.startswith(name)), None)
    if record is None:
        return False
    file = packages / record
    return file.is_file() and file.stat().st_size == record.size


def pip(arguments: str) -> str:
    """Return the command line that has pip do this for the running interpreter.

    Args:
        arguments: ``install …`` or ``uninstall …``, quoted for a shell.
    """
    python = shlex.quote(sys.executable)
    # Not find_spec: at the name of pip, setuptools switches this process back to the standard library's distutils.
    if version_of("pip"):
        yes = arguments.replace("uninstall", "uninstall -y", 1)
        return f"{python} -m pip {yes}"
    verb, _, rest = arguments.partition(" ")
    return f"uv pip {verb} --python {python} {rest}"  # uv's environments hold no pip of their own
