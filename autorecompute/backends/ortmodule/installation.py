"""ONNX Runtime and PyTorch as they are installed, the CUDA libraries they bring, and ORT's extensions for PyTorch.

``python -m autorecompute.backends.ortmodule.installation`` builds the extensions that are missing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.backends.ortmodule.controller import parse_release
from autorecompute.errors import InterruptedByUser, SetupError

if TYPE_CHECKING:
    from collections.abc import Mapping


def version_of(distribution: str) -> str | None:
    """Return the version that pip recorded; ``None`` where the distribution is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


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
    """Tell whether the file of this beginning, in the folder of packages, is that which the distribution installed."""
    record = next((file for file in metadata.files(distribution) or () if file.name.startswith(name)), None)
    return record is not None and (file := packages / record).is_file() and file.stat().st_size == record.size


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


HEADERS = ("include/cuda_runtime_api.h", "include/crt/host_defines.h")
USUAL_TOOLKIT = Path("/usr/local/cuda")


def missing_headers(cuda: str) -> str:
    """Return a sentence about the headers of torch's CUDA, such as ``12.4``; empty where none is missing."""
    if _find_toolkit(cuda) or (_wheels_with_headers() and _wheel_with(_runtime(cuda))):
        return ""
    major, minor = map(int, cuda.split(".")[:2])
    # NVIDIA renamed its wheels with CUDA 13, and took crt out of the compiler's.
    is_renamed = major >= 13  # noqa: PLR2004
    wheels = ("runtime", "crt") if is_renamed else (f"runtime-cu{major}", f"nvcc-cu{major}")
    pins = " ".join(f"'nvidia-cuda-{wheel}=={major}.{minor}.*'" for wheel in wheels)
    return f"CUDA's headers are missing. Run: {pip(f'install {pins}')}"


def variables(cuda: str, scratch: Path) -> dict[str, str]:
    """Return the variables that lead torch's build rules to CUDA's headers and runtime, or to stand-ins in a folder."""
    if toolkit := _find_toolkit(cuda):
        return {"CUDA_HOME": str(toolkit)}
    libraries = scratch / "cuda" / "lib64"
    libraries.mkdir(parents=True)
    if wheel := _wheel_with(_runtime(cuda)):
        # The linker looks for the library without its version, and wheels hold no such link.
        (libraries / "libcudart.so").symlink_to(wheel / _runtime(cuda))
    includes = [str(folder / "include") for folder in _wheels_with_headers()]
    search = filter(None, [*includes, os.environ.get("CPATH")])
    return {"CUDA_HOME": str(libraries.parent), "CPATH": os.pathsep.join(search)}


def _find_toolkit(cuda: str) -> Path | None:
    """Return the toolkit that the user chose, else one in the usual places whose major version is torch's."""
    if chosen := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Path(chosen)
    nvcc = shutil.which("nvcc")
    folders = [*([Path(nvcc).resolve().parent.parent] if nvcc else []), USUAL_TOOLKIT]
    library = f"lib64/{Path(_runtime(cuda)).name}*"
    return next((one for one in folders if any(one.glob(library)) and all((one / h).is_file() for h in HEADERS)), None)


def _wheels_with_headers() -> list[Path]:
    # They hold the headers between them; none counts where one is missing.
    folders = list(filter(None, map(_wheel_with, HEADERS)))
    return folders if len(folders) == len(HEADERS) else []


def _wheel_with(file: str) -> Path | None:
    return next((folder for folder in _wheel_folders() if (folder / file).is_file()), None)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return sorted(
        folder for root in (spec and spec.submodule_search_locations) or () for folder in Path(root).iterdir()
    )


def _runtime(cuda: str) -> str:
    return f"lib/libcudart.so.{cuda.partition('.')[0]}"


SOURCES = {
    "aten_op_executor": "cpu/aten_op_executor",
    "torch_interop_utils": "cpu/torch_interop_utils",
    "torch_gpu_allocator": "cuda/torch_gpu_allocator",
}
"""Each extension's folder of sources. ORT's ``fused_ops`` is left out: it serves optimizers, not ORTModule."""

REPAIR = "autorecompute doctor --fix"
ELF_HEADER = struct.Struct("<40xQ10xHH2x")  # of 64 bits: where the table of sections begins, the size of each, how many
ERROR_LINES, TAIL_LINES = 5, 12


def needed() -> tuple[str, ...]:
    """Return the names of the extensions that ORTModule needs with the installed torch.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    has_gpu = torch.version.cuda and build_information().get("cuda_version")
    interop = ("torch_interop_utils",) if runs_as_it_is(torch.__version__) else ()
    return ("aten_op_executor", *interop, *(("torch_gpu_allocator",) if has_gpu else ()))


def examine(name: str) -> str:
    """Return why the extension cannot be used, in words; empty where it loads into this process.

    Raises:
        SetupError: onnxruntime-training is not installed.
        ImportError: torch is not installed.
    """
    candidates = (_folder() / f"{name}{suffix}" for suffix in EXTENSION_SUFFIXES)
    file = next(filter(Path.is_file, candidates), None)
    return _try_to_load(file) if file else "not built"


def _folder() -> Path:
    folder = package_folder()
    extensions = folder / "training" / "ortmodule" / "torch_cpp_extensions" if folder else None
    if extensions is None or not extensions.is_dir():
        raise SetupError("onnxruntime-training has no sources of its extensions. Reinstall it: autorecompute doctor")
    return extensions


def _try_to_load(file: Path) -> str:
    import torch  # brings the libraries that an extension is linked against

    if not _is_whole(file):
        return "the file is cut short"
    try:
        # Resolves every symbol, as an import does, but runs no code of the module: a second import could not undo that.
        ctypes.CDLL(str(file))
    except OSError as error:
        return f"does not load with torch {torch.__version__}: {str(error).removeprefix(f'{file}: ')}"
    return ""


def _is_whole(file: Path) -> bool:
    """Tell whether the ELF file reaches to the end of its last table: loading less can end the process with SIGBUS."""
    with file.open("rb") as opened:
        header = opened.read(ELF_HEADER.size)
    if len(header) < ELF_HEADER.size:
        return False
    table, entry_size, entries = ELF_HEADER.unpack(header)
    return file.stat().st_size >= int(table + entry_size * entries)


def obstacle(name: str) -> str:
    """Return a sentence about what must be installed before the extension can be compiled; empty where nothing is."""
    compiler = os.environ.get("CXX", "c++").split()[0]
    if shutil.which(compiler) is None:
        return f"There is no C++ compiler '{compiler}'. Install one, for example with: apt-get install g++"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        return f"Python's headers are missing. Install them, for example with: apt-get install python{version}-dev"
    if importlib.util.find_spec("setuptools") is None:
        return f"setuptools is missing. Run: {pip('install setuptools')}"
    return missing_headers(cuda) if (cuda := _cuda_of(name)) else ""


def _cuda_of(name: str) -> str:
    import torch  # whose CUDA it is, and not ORT's

    return str(torch.version.cuda) if SOURCES[name].startswith("cuda/") else ""


def build(name: str) -> None:
    """Compile the extension against the installed torch and put it where ORT looks for it: seconds to minutes.

    Raises:
        SetupError: a tool is missing, the compiler failed, what it made does not load, or ORT's folder is read-only.
        ImportError: torch is not installed.
    """
    folder = _folder()
    if sentence := obstacle(name):
        raise SetupError(f"{name} cannot be built. {sentence}")
    if not os.access(folder, os.W_OK):
        raise SetupError(f"{name} cannot be built: {folder} is read-only. Run as its owner: {REPAIR}")
    with tempfile.TemporaryDirectory(prefix="autorecompute-") as scratch:
        # The sources are copied: torch_gpu_allocator's setup.py edits its own.
        sources = Path(shutil.copytree(folder / SOURCES[name], Path(scratch, name)))
        built = _compile(name, sources)
        if problem := _try_to_load(built):
            raise SetupError(f"{name} was built and {problem}. Reinstall torch, then run: {REPAIR}")
        draft = folder / f".{built.name}.{os.getpid()}"
        try:
            shutil.copyfile(built, draft)
            draft.chmod(0o755)
            draft.replace(folder / built.name)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise SetupError(
                f"{folder} takes no file: {error.strerror}. Make room there, then run: {REPAIR}"
            ) from error


def _compile(name: str, sources: Path) -> Path:
    output, scratch = sources.parent / "output", sources.parent / "objects"
    handle, log = tempfile.mkstemp(prefix=f"autorecompute-{name}-", suffix=".log")
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(output), "--build-temp", str(scratch)]
    information, cuda = build_information(), _cuda_of(name)
    environment = {  # as ORT's own installer gives it to the setup.py of an extension
        **os.environ,
        "LC_ALL": "C.UTF-8",  # a compiler speaks the user's language otherwise, and errors could not be picked out
        "ONNXRUNTIME_CUDA_VERSION": information.get("cuda_version") or "",
        "ONNXRUNTIME_ROCM_VERSION": information.get("rocm_version") or "",
        **(variables(cuda, sources.parent) if cuda else {}),
    }
    with os.fdopen(handle, "wb") as file:
        done = subprocess.run(command, cwd=sources, env=environment, stdout=file, stderr=file, check=False)
    built = next(output.glob(f"{name}*.so"), None)
    if done.returncode != 0 or built is None:
        # setuptools follows the compiler's errors with a long traceback.
        lines = Path(log).read_text(errors="replace").splitlines()
        errors = [line for line in lines if " error: " in line]
        told = "\n".join(errors[:ERROR_LINES] or lines[-TAIL_LINES:])
        raise SetupError(
            f"{name} does not compile:\n{told}\nThe whole log is {log}. Repair what it names, then run: {REPAIR}"
        )
    Path(log).unlink()
    return built


def main() -> int:
    """Build each needed extension that does not load; the exit code is that of the command line's contract."""
    try:
        names = [name for name in needed() if examine(name)]
        for position, name in enumerate(names, start=1):
            sys.stderr.write(f"[{position}/{len(names)}] {name}: compiling since {time.strftime('%H:%M:%S')} ... ")
            sys.stderr.flush()
            start = time.monotonic()
            try:
                build(name)
            except SetupError:
                sys.stderr.write(f"failed after {time.monotonic() - start:.0f} s\n")
                raise
            sys.stderr.write(f"built in {time.monotonic() - start:.0f} s\n")
    except (SetupError, ImportError) as error:
        message = str(error) if isinstance(error, SetupError) else f"{error}. See: autorecompute doctor"
        sys.stderr.write(f"autorecompute: {message}\n")
        return SetupError.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return InterruptedByUser.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
