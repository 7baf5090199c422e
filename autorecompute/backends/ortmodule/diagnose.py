"""Looks at the installation piece by piece, and knows the exact repair of each.

``python -m autorecompute.backends.ortmodule.diagnose`` prints the findings as JSON. No broken piece may end in a
traceback: each is a finding.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform
import shutil
import sys
from pathlib import Path

from autorecompute.backends.findings import Finding, Status, blocking, find_transformers, print_findings
from autorecompute.backends.ortmodule import adapter, installation
from autorecompute.backends.ortmodule.controller import parse_release
from autorecompute.backends.ortmodule.installation import build_information, pip, version_of
from autorecompute.errors import SetupError, last_line
from autorecompute.meters.nvml import NvmlError, describe_visible
from autorecompute.tested import VERSIONS, describe
from autorecompute.units import GIB, format_bytes

OLDEST_TORCH = (2, 4)
NEXT_ONNX = (1, 17)
ONNX = "'onnx>=1.16,<1.17'"
NEEDED_FREE_BYTES = GIB

CPU_ORT, CUDA_ORT = "onnxruntime-training-cpu", "onnxruntime-training"
TRAINING = (CPU_ORT, CUDA_ORT)
SHARING_A_FOLDER = (*TRAINING, "onnxruntime", "onnxruntime-gpu")
"""Distributions that all install the package ``onnxruntime``: the last one installed overwrites the others' files."""

CORE = "onnxruntime_pybind11_state"  # the compiled module of which every distribution has its own


def findings() -> list[Finding]:
    """Return every piece, in the order in which they are to be repaired."""
    found = [_check_python(), *_check_packages(probe_cuda=True)]
    found.append(_check_ortmodule() if not blocking(found) else _ORTMODULE_NOT_TRIED)
    return [*found, *find_transformers(), _check_nvml(), _check_disk()]


def findings_for_training() -> list[Finding]:
    """Return the pieces that a training process cannot start without, in about the time of importing torch."""
    # Without a GPU, ORT loads no CUDA library either: they would only weigh on this process's memory.
    return _check_packages(probe_cuda=_count_gpus() > 0)


def _check_packages(*, probe_cuda: bool) -> list[Finding]:
    found = [_check_torch(), _check_onnxruntime()]
    if blocking(found):
        return [*found, _check_onnx()]
    cuda = _check_cuda_libraries() if probe_cuda else []
    return [*found, _check_onnx(), *cuda, *map(_check_extension, installation.needed())]


def _find(status: Status, name: str, found: str, remedy: str = "") -> Finding:
    return Finding(name=name, status=status, found=found, remedy=remedy)


_ok = functools.partial(_find, Status.OK)
_warning = functools.partial(_find, Status.WARNING)
_missing = functools.partial(_find, Status.MISSING)

_ORTMODULE_NOT_TRIED = _missing("ORTModule", "not tried while something above is missing", "Repair that first.")


def _check_python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"
    if (platform.system(), platform.machine(), *sys.version_info[:2]) == ("Linux", "x86_64", 3, 11):
        return _ok("python", found)
    return _missing(
        "python",
        f"{found}; onnxruntime-training has wheels for Python 3.11 on Linux x86_64 only",
        "Install into an environment made there with: python3.11 -m venv .venv",
    )


def _check_torch() -> Finding:
    try:
        version = importlib.import_module("torch").__version__
    except Exception as error:  # noqa: BLE001  (a broken torch raises anything)
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return _missing("torch", "not installed", _run(pip("install 'torch>=2.4'")))
        repair = pip("install --force-reinstall 'torch>=2.4'")
        return _missing("torch", f"cannot be imported: {type(error).__name__}: {last_line(error)}", _run(repair))
    if parse_release(version) < OLDEST_TORCH:
        return _missing("torch", f"{version} is too old", _run(pip("install --upgrade 'torch>=2.4'")))
    return _ok("torch", f"{version}, GPUs seen: {_count_gpus()}; {describe('torch')}")


def _count_gpus() -> int:
    # Counting leaves CUDA uninitialised: the user's script may still choose among them.
    try:
        return int(importlib.import_module("torch").cuda.device_count())
    except Exception:  # noqa: BLE001  (a broken torch raises anything, and is reported by its own finding)
        return 0


def _check_onnxruntime() -> Finding:
    name, folder = CUDA_ORT, installation.package_folder()
    installed = {each: version for each in SHARING_A_FOLDER if (version := version_of(each))}
    remedy = _run(_reinstall_ort(*installed))
    usable = [
        each for each in TRAINING if each in installed and folder and installation.owns_file(each, CORE, folder.parent)
    ]
    if not usable:
        return _missing(name, _explain_unusable(installed), remedy)
    others = _enumerate({each: installed[each] for each in installed if each not in usable})
    found = f"{usable[0]} {installed[usable[0]]}"
    if others:
        return _warning(name, f"{found}, in one folder with {others}", remedy)
    if parse_release(installed[usable[0]]) not in map(parse_release, VERSIONS[name]):
        return _warning(name, f"{found}, which was never tried; {describe(name)}", remedy)
    return _ok(name, f"{found}; {describe(name)}")


def _explain_unusable(installed: dict[str, str]) -> str:
    training = {each: installed[each] for each in installed if each in TRAINING}
    others = {each: installed[each] for each in installed if each not in TRAINING}
    if not training:
        return f"only {_enumerate(others)} is installed, which cannot train" if others else "not installed"
    damage = f"overwritten by {_enumerate(others)}" if others else "missing or overwritten"
    return f"{_enumerate(training)} is installed, and its files are {damage}"


def _enumerate(versions: dict[str, str]) -> str:
    return " and ".join(f"{name} {version}" for name, version in versions.items())


def _install_ort() -> str:
    return pip(f"install {CUDA_ORT if _count_gpus() else CPU_ORT}==1.19.2")


def _reinstall_ort(*installed: str) -> str:
    return f"{pip('uninstall ' + ' '.join(installed))} && {_install_ort()}" if installed else _install_ort()


def _check_onnx() -> Finding:
    version, repair = version_of("onnx"), _run(pip(f"install {ONNX}"))
    if version is None:
        return _missing("onnx", "not installed", repair)
    if parse_release(version) >= NEXT_ONNX:
        return _warning("onnx", f"{version}, newer than onnxruntime-training expects", repair)
    return _ok("onnx", version)


def _check_cuda_libraries() -> list[Finding]:
    name, gpus = "CUDA libraries", _count_gpus()
    if not (version := build_information().get("cuda_version")):
        found = f"torch sees {gpus} GPU, and the CPU build of onnxruntime-training cannot use it"
        return [_warning(name, found, _run(_reinstall_ort(CPU_ORT)))] if gpus else []
    libraries = installation.of_build(version)
    if not libraries:
        return [_ok(name, f"not looked for: onnxruntime-training is a build for CUDA {version}")]
    lacking = installation.lacking(libraries)
    if not lacking:
        return [_ok(name, f"{', '.join(libraries)} load")]
    report = _missing if gpus else _warning
    wheels = dict.fromkeys(installation.wheel_of(libraries[library], version) for library in lacking)
    return [report(name, f"{', '.join(lacking)} cannot be loaded", _run(pip(f"install {' '.join(wheels)}")))]


def _check_extension(name: str) -> Finding:
    try:
        problem, obstacle = installation.examine(name), installation.obstacle(name)
    except SetupError as error:
        return _missing(f"extension {name}", str(error), _run(_reinstall_ort(*filter(version_of, TRAINING))))
    if not problem:
        return _ok(f"extension {name}", "built, and loads")
    remedy = f"{obstacle}; then run: {installation.REPAIR}" if obstacle else _run(installation.REPAIR)
    # Without a GPU, ORTModule does not ask for torch's GPU allocator.
    report = _missing if _count_gpus() or not name.endswith("gpu_allocator") else _warning
    return report(f"extension {name}", problem, remedy)


def _check_ortmodule() -> Finding:
    try:
        repairs = adapter.adapt()
        module = importlib.import_module(adapter.ORTMODULE)
        # ORTModule keeps what went wrong at its import for the first model that is wrapped
        if module._FALLBACK_INIT_EXCEPTION is not None:  # noqa: SLF001
            raise module._FALLBACK_INIT_EXCEPTION  # noqa: SLF001, TRY301
    except Exception as error:  # noqa: BLE001  (whatever an untried pair of versions raises)
        lacks_dependency = isinstance(error, ModuleNotFoundError) and not str(error.name).startswith("torch")
        repair = _install_ort() if lacks_dependency else pip(f"install 'torch==2.6.*' {ONNX}")
        return _missing("ORTModule", f"cannot be imported: {type(error).__name__}: {last_line(error)}", _run(repair))
    adapted = f"adapted to this torch: {', '.join(repairs)}" if repairs else "needs no adapting to this torch"
    return _ok("ORTModule", f"can be imported; {adapted}")


def _check_nvml() -> Finding:
    if impostor := version_of("pynvml"):
        repair = f"{pip('uninstall pynvml nvidia-ml-py')} && {pip('install nvidia-ml-py')}"
        return _warning("NVML", f"pynvml {impostor} is installed, an inactive twin of nvidia-ml-py", _run(repair))
    if version_of("nvidia-ml-py") is None:
        return _missing("NVML", "nvidia-ml-py is not installed", _run(pip("install nvidia-ml-py")))
    try:
        return _ok("NVML", describe_visible())
    except NvmlError as error:
        if not build_information().get("cuda_version"):
            return _ok("NVML", "no NVIDIA driver, and on a CPU none is needed")
        return _warning("NVML", error.found, error.remedy)


def _check_disk() -> Finding:
    folder = Path.cwd()
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free in {folder}"
    if not os.access(folder, os.W_OK):
        return _warning("disk", f"{folder} is read-only, and studies are kept there", "Change to a folder of yours.")
    if free < NEEDED_FREE_BYTES:
        return _warning("disk", found, f"Free {format_bytes(NEEDED_FREE_BYTES)}, or change to a folder with more room.")
    return _ok("disk", found)


def _run(command: str) -> str:
    return f"Run: {command}"


if __name__ == "__main__":
    print_findings(findings)
