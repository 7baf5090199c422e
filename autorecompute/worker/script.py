"""Runs the user's script as ``python SCRIPT`` would."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import os
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, TracebackType

TRACE_LINES = 12


def run_as_main(script: str, arguments: list[str]) -> None:
    """Run the script as ``__main__``, with its folder first on the module path and its own arguments."""
    # Not runpy: it takes the module away when the script ends, and puts its path in place of the user's in argv.
    sys.argv = [script, *arguments]
    _lead_module_path(str(Path(script).resolve().parent))
    # The script has its own future statements, not those of this module.
    code = compile(Path(script).read_bytes(), main_file(script), "exec", dont_inherit=True)
    _run(code, __file__=main_file(script))


def run_module_as_main(name: str, arguments: list[str]) -> None:
    """Run a module as ``python -m`` would, with the working directory first on the module path.

    Raises:
        ImportError: there is no such module, or it has nothing to run.
    """
    _lead_module_path(os.getcwd())  # noqa: PTH109  (a string, as Python puts it there)
    spec = find_module(name)
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    sys.argv = [str(spec.origin), *arguments]
    _run(code, __file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader)


def find_module(name: str) -> ModuleSpec:
    """Return the module of this name; of a package, the one that runs it.

    Raises:
        ImportError: there is no such module, or it has nothing to run.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    if spec is None or not spec.has_location:
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    return spec


def _lead_module_path(folder: str) -> None:
    # Under -P or PYTHONSAFEPATH Python puts no folder there: the first entry is the user's own.
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _run(code: CodeType, **names: object) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __builtins__=builtins)
    sys.modules["__main__"] = main
    # Processes that the script spawns know its classes by this name, which multiprocessing set when it was imported.
    sys.modules["__mp_main__"] = main
    try:
        exec(code, main.__dict__)  # noqa: S102  (the user's own script, as Python would)
    except SystemExit:
        _wait_for_threads()
        raise
    _wait_for_threads()


def _wait_for_threads() -> None:
    """Wait for what the script's threads still do, as Python does before a process ends."""
    # Not by joining them: pools of threads wait for work until they are told that none comes.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001


@functools.cache
def main_file(script: str) -> str:
    """Return the script's ``__file__``: Python puts the working directory in front, and changes nothing else.

    It stays the same where the script changes that directory.
    """
    return os.path.join(os.getcwd(), script)  # noqa: PTH109, PTH118  (pathlib would tidy the path up)


def last_lines(error: BaseException, script: str) -> tuple[str, ...]:
    """Return the end of the traceback, from the script's first frame on."""
    text = "".join(traceback.format_exception(type(error), error, from_script(error.__traceback__, script)))
    return tuple(text.rstrip().splitlines()[-TRACE_LINES:])


def from_script(entry: TracebackType | None, script: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on; nothing if it has none, as one that cannot be compiled."""
    while entry is not None and entry.tb_frame.f_code.co_filename != main_file(script):
        entry = entry.tb_next
    return entry
