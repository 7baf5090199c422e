import contextlib
import faulthandler
import os
import resource
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from unittest import mock
from urllib.parse import unquote

from autorecompute import cli

WORK = "here"  # the folder of a case in which its command runs
MOST_BYTES = 2**30
MOST_SECONDS = 20
"""Of a processor: what others do to the machine meanwhile counts for nothing."""
LONGEST_WAIT = 900
"""Seconds on the wall, many more than a busy machine takes for those of a processor: a command waits for ever then."""
CRASHED = 99  # stands for the exit code of a command that an exception ended

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ)
_STREAMS = ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: bytes
    err: bytes
    crash: str
    touched: tuple[str, ...]


def limit_memory():
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run(place, command, *, encoding="utf-8", main=cli.main):
    """Runs a command, or what a test has instead of one.

    The process ends, with its stacks on standard error, where that takes too long; what else is done to it is undone.
    """
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", **dict(command.variables)}
    environment = {"HOME": f"{place}/home", "TMPDIR": f"{place}/tmp", **environment}
    with (
        _limited(),
        _redirected(place, place / WORK / command.stdin, encoding),
        _restoring(),
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(tempfile, "tempdir", None),
        mock.patch.object(os, "execvpe", _become),
        contextlib.chdir(place / WORK),
        _watching(place) as touched,
    ):
        code, crash = _call(main, list(command.arguments))
    written = [(place / name).read_bytes() for name in ("out", "err")]
    return Ended(code, *written, crash, tuple(dict.fromkeys(touched)))


def _call(main, arguments):
    try:
        return main(arguments), ""
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None), ""
    except BaseException:  # noqa: BLE001  (whatever it is, it is what is looked for)
        return CRASHED, traceback.format_exc()


def _become(file, arguments, environment):
    child = os.posix_spawnp(file, arguments, environment)
    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@contextlib.contextmanager
def _limited():
    """Ends this process, with its stacks, where what follows takes too long."""
    # Where standard error leads now: the command has another one.
    errors = os.dup(2)
    faulthandler.register(signal.SIGPROF, file=errors, chain=True)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    faulthandler.dump_traceback_later(LONGEST_WAIT, exit=True, file=errors)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)
        os.close(errors)


@contextlib.contextmanager
def _redirected(place, stdin, encoding):
    """Has the three streams lead elsewhere; by Python's own names of them nobody has taken their place."""
    kept, copies = {name: getattr(sys, name) for name in _STREAMS}, [os.dup(number) for number in range(3)]
    _lead([os.open(stdin, os.O_RDONLY), *(os.open(place / name, _NEW) for name in ("out", "err"))])
    streams = (
        os.fdopen(0, encoding=encoding, closefd=False),
        os.fdopen(1, "w", encoding=encoding, closefd=False),
        os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", closefd=False),
    )
    vars(sys).update(zip(_STREAMS, (*streams, *streams[1:]), strict=True))
    try:
        yield
    finally:
        for stream in streams[1:]:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        _lead(copies)
        vars(sys).update(kept)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def _lead(descriptors):
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)


@contextlib.contextmanager
def _restoring():
    """Undoes what a command does to the signals of its process, which ends with it elsewhere."""
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class ForbiddenError(BaseException):
    """Ends a command before it changes what is not its own, whoever runs the tests."""


class _Watch:
    """What Python's audit events tell; a hook cannot be taken away again, so there is one for the process."""

    def __init__(self):
        self.allowed, self.touched, self.is_hooked = (), None, False

    def hear(self, event, arguments):
        if self.touched is None:
            return
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            self._require_inside(event, arguments[0])
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._require_inside(event, path)
        elif event == "sqlite3.connect":
            self._require_inside(event, unquote(str(arguments[0]).removeprefix("file:").partition("?")[0]))
        elif event in _FORBIDDEN:
            self._refuse(f"{event}: {arguments!r}")

    def _require_inside(self, event, path):
        if isinstance(path, int):
            return
        path = Path(os.fsdecode(path))
        # What is removed or made is an entry of its folder, wherever it leads.
        real = f"{os.path.realpath(path.parent)}/{path.name}" if event in _ENTRIES else os.path.realpath(path)
        if not f"{real}/".startswith(self.allowed) and real != os.devnull:
            self._refuse(f"{event}: {path} is {real}")

    def _refuse(self, text):
        self.touched.append(text)
        raise ForbiddenError(text)


_WATCH = _Watch()

_ENTRIES = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.rename": 2, "os.link": 2}
_CHANGES = _ENTRIES | {"os.truncate": 1, "os.chmod": 1, "os.chown": 1, "os.utime": 1}
"""Events by how many of their arguments are paths that are changed."""

_FORBIDDEN = {"os.system", "os.fork", "os.forkpty", "subprocess.Popen"}
_FORBIDDEN |= {"socket.connect", "socket.getaddrinfo", "pickle.find_class", "urllib.Request"}
"""What nothing that only reads a study does."""


@contextlib.contextmanager
def _watching(place):
    """Notes and prevents meanwhile what no command may do; gives the list of what it tries."""
    if not _WATCH.is_hooked:
        sys.dont_write_bytecode = True  # a verb's module is imported, and compiled, as it is first run
        sys.addaudithook(_WATCH.hear)
        _WATCH.is_hooked = True
    _WATCH.allowed = tuple(f"{place}/{name}/" for name in (WORK, "tmp", "home"))
    touched = _WATCH.touched = []
    try:
        yield touched
    finally:
        _WATCH.touched = None
