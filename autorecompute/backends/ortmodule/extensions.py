"""ONNX Runtime's extensions for PyTorch: whether they are built, and how to build them."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from autorecompute.backends.ortmodule.installation import build_information, package_folder, pip, runs_as_it_is
from autorecompute.errors import InterruptedByUser, SetupError

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
    """Return the environment variables that lead torch's build rules to the headers and the CUDA runtime.

    The scratch folder may take a stand-in for a toolkit, and lives as long as the build.
    """
    if toolkit := _find_toolkit(cuda):
        return {"CUDA_HOME": str(toolkit)}
    libraries = scratch / "cuda" / "lib64"
    libraries.mkdir(parents=True)
    if wheel := _wheel_with(_runtime(cuda)):
        # The linker looks for the library without its version, and wheels hold no such link.
        (libraries / "libcudart.so").symlink_to(wheel / _runtime(cuda))
    includes = [str(folder / "include") for folder in _wheels_with_headers()]
    search = [*includes, *filter(None, [os.environ.get("CPATH")])]
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
    """Return the folders of NVIDIA's wheels that hold the headers between them; none if one is missing."""
    folders = [folder for header in HEADERS if (folder := _wheel_with(header)) is not None]
    return folders if len(folders) == len(HEADERS) else []


def _wheel_with(file: str) -> Path | None:
    return next((folder for folder in _wheel_folders() if (folder / file).is_file()), None)


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = map(Path, spec.submodule_search_locations or ()) if spec else ()
    return sorted(folder for root in roots for folder in root.iterdir() if folder.is_dir())


def _runtime(cuda: str) -> str:
    return f"lib/libcudart.so.{cuda.partition('.')[0]}"


SOURCES = {
    "aten_op_executor": "cpu/aten_op_executor",
    "torch_interop_utils": "cpu/torch_interop_utils",
    "torch_gpu_allocator": "cuda/torch_gpu_allocator",
}
"""Each extension's folder of sources. ORT's ``fused_ops`` is left out: it serves optimizers, not ORTModule."""

REPAIR = "autorecompute doctor --fix"
ERROR_LINES = 5
TAIL_LINES = 12


def needed() -> tuple[str, ...]:
    """Return the names of the extensions that ORTModule needs with the installed torch.

    Raises:
        ImportError: torch is not installed.
    """
    import torch

    names = ["aten_op_executor"]
    if runs_as_it_is(torch.__version__):
        names.append("torch_interop_utils")
    if torch.version.cuda and build_information().get("cuda_version"):
        names.append("torch_gpu_allocator")
    return tuple(names)


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
        header = opened.read(64)
    if len(header) < 64:  # noqa: PLR2004  (the size of a 64-bit ELF header)
        return False
    (table,) = struct.unpack_from("<Q", header, 40)
    entry_size, entries = struct.unpack_from("<HH", header, 58)
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
    """Return the CUDA that the extension is compiled with, which is torch's and not ORT's; empty if it needs none."""
    import torch

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
        _put_in_place(built, folder)


def _compile(name: str, sources: Path) -> Path:
    """Run the extension's ``setup.py`` in its folder and return the library it made."""
    output, scratch = sources.parent / "output", sources.parent / "objects"
    handle, log = tempfile.mkstemp(prefix=f"autorecompute-{name}-", suffix=".log")
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(output), "--build-temp", str(scratch)]
    with os.fdopen(handle, "wb") as file:
        done = subprocess.run(
            command, cwd=sources, env=_variables(name, sources.parent), stdout=file, stderr=file, check=False
        )
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


def _variables(name: str, scratch: Path) -> dict[str, str]:
    """Return the environment that ORT's own installer gives to the ``setup.py`` of an extension."""
    information, cuda = build_information(), _cuda_of(name)
    return {
        **os.environ,
        "LC_ALL": "C.UTF-8",  # a compiler speaks the user's language otherwise, and errors could not be picked out
        "ONNXRUNTIME_CUDA_VERSION": information.get("cuda_version") or "",
        "ONNXRUNTIME_ROCM_VERSION": information.get("rocm_version") or "",
        **(variables(cuda, scratch) if cuda else {}),
    }


def _put_in_place(built: Path, folder: Path) -> None:
    draft = folder / f".{built.name}.{os.getpid()}"
    try:
        shutil.copyfile(built, draft)
        draft.chmod(0o755)
        draft.replace(folder / built.name)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise SetupError(f"{folder} takes no file: {error.strerror}. Make room there, then run: {REPAIR}") from error


def _build_missing() -> None:
    """Build each needed extension that does not load, with a line on stderr about each."""
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


def main() -> int:
    """Build what is missing in this interpreter; the exit code is that of the command line's contract."""
    try:
        _build_missing()
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
