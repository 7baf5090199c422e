"""Forks processes that have imported torch, or these modules: ``server.py ADDRESS EXECUTABLE [MODULE...]``."""

import array
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
from contextlib import suppress

import numpy as np

HIDDEN = ("functorch", "torch", "torchgen", "transformers")
"""A fork has to import these itself, as somebody may wait for that."""

NEEDED = ("optuna", "rich.live", "rich.progress", "scipy.stats", "sympy", "torch._subclasses.fake_tensor")

PR_SET_PDEATHSIG, M_MMAP_THRESHOLD = 1, -3
MOST_FILES = 250
STDERR = 2


def import_all():
    """Import what most processes need; give the modules of the hidden packages."""
    for name in NEEDED:
        with suppress(ImportError):
            importlib.import_module(name)
    with suppress(ImportError):
        from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, Trainer  # noqa: F401
    hidden = {package: {} for package in HIDDEN}
    for name in list(sys.modules):
        if (package := name.partition(".")[0]) in HIDDEN:
            hidden[package][name] = sys.modules.pop(name)
    return hidden


class Finder:
    """Finds hidden modules where a fork imports them."""

    def __init__(self, hidden):
        self._hidden = hidden

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002  (Python's interface)
        package = self._hidden.get(name.partition(".")[0], {})
        if name not in package:
            return None
        known = package[name].__spec__
        spec = importlib.machinery.ModuleSpec(name, Loader(package, name), origin=known.origin)
        spec.submodule_search_locations = known.submodule_search_locations
        return spec


class Loader:
    """Gives a package as it was imported, with all of its modules."""

    def __init__(self, package, name):
        self._package, self._module = package, package[name]
        self._spec = self._module.__spec__

    def create_module(self, _):
        return self._module

    def exec_module(self, module):
        module.__spec__ = self._spec
        if not module.__name__.startswith("torch"):
            import torch  # noqa: F401  (as its own code would)
        for name, each in self._package.items():
            sys.modules.setdefault(name, each)
        self._package.clear()


def serve(listener):
    """Have a process of its own look after each fork, until standard input is closed."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            return None
        client, _ = listener.accept()
        if not os.fork():
            listener.close()
            return client
        client.close()


def look_after(client):
    """Fork once more, tell the client how the fork ended, and end it with the client; the fork gets what is asked."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, rights, _, _ = client.recvmsg(4, socket.CMSG_SPACE(MOST_FILES * array.array("i").itemsize))
    if not rights:
        os._exit(0)
    files = array.array("i")
    files.frombytes(rights[0][2])
    with client.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(head)))
    pid = os.fork()
    if not pid:
        client.close()
        return asked, files
    for file in files:
        os.close(file)
    with suppress(OSError):
        client.sendall(f"{pid}\n".encode())
    ended = os.pidfd_open(pid)
    ready, _, _ = select.select([ended, client], [], [])
    if ended not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        client.sendall(f"{code}\n".encode())
    os._exit(0)


def become(asked, files, executable):
    """Make this fork what the interpreter is when it has started with these arguments."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if asked["session"] == os.getsid(0):
        os.setpgid(0, asked["group"])
    else:
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN if asked["ignores"] else signal.default_int_handler)
    # Out of the way of the numbers that they shall have.
    above = max(*asked["files"], *files) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    os.closerange(3, above)
    for file, place in zip(moved, asked["files"], strict=True):
        os.dup2(file, place)
        os.close(file)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    if threshold := os.environ.get("MALLOC_MMAP_THRESHOLD_"):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, int(threshold))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (written(file, errors) for file, errors in ((1, "strict"), (2, "backslashreplace")))
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    sys.executable = executable
    np.random.seed()  # noqa: NPY002  (the state that scripts share)


def written(file, errors):
    """A standard stream that is written as the interpreter writes it."""
    if os.environ.get("PYTHONUNBUFFERED"):
        raw = open(file, "wb", buffering=0, closefd=False)  # noqa: SIM115
        return io.TextIOWrapper(raw, errors=errors, write_through=True)
    by_lines = 1 if file == STDERR or os.isatty(file) else -1
    return open(file, "w", buffering=by_lines, errors=errors, closefd=False)


def set_path(first, path):
    """Set the module path, and load the ``sitecustomize`` that lies on it."""
    listed = os.environ.get("PYTHONPATH", "")
    sys.path[:] = [*(listed.split(os.pathsep) if listed else ()), *path]
    sys.path_importer_cache.clear()
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    sys.path.insert(0, first)


def run(arguments, path):
    """Run a module, code or a script as ``__main__``."""
    kind, rest = (arguments[0], arguments[1:]) if arguments[0] in {"-m", "-c"} else ("", arguments)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    if kind == "-m":
        set_path(os.getcwd(), path)  # noqa: PTH109
        sys.argv = ["-m", *rest[1:]]
        runpy._run_module_as_main(rest[0])
    elif kind == "-c":
        set_path("", path)
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)  # noqa: S102
    else:
        set_path(os.path.dirname(os.path.realpath(rest[0])), path)  # noqa: PTH120
        sys.argv = rest
        main.__file__ = rest[0]
        with open(rest[0], "rb") as file:  # noqa: PTH123
            code = compile(file.read(), rest[0], "exec")
        exec(code, main.__dict__)  # noqa: S102


def main(address, executable, *modules):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)  # who calls before all is imported waits
    hidden = {} if modules else import_all()
    for name in modules:
        importlib.import_module(name)
    path = list(sys.path[1:])  # without the folder of this file
    gc.freeze()
    client = serve(listener)
    if client is None:
        return
    asked, files = look_after(client)
    become(asked, files, executable)
    finders = sys.meta_path  # libraries add their own behind Python's
    finders.insert(finders.index(importlib.machinery.PathFinder), Finder(hidden))
    try:
        run(asked["arguments"], path)
    except SystemExit:
        raise
    except BaseException as error:
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
            traceback = traceback.tb_next
        sys.excepthook(type(error), error.with_traceback(traceback), traceback)
        sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    main(*sys.argv[1:])
