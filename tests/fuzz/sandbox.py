"""Commands in a process that is limited and watched; whoever may end the process has one of its own."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import resource
import select
import signal
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from autorecompute import cli
from fuzz.watch import WATCH

MOST_BYTES = 2**30
MOST_SECONDS = 20
"""Of a processor: what others do to the machine meanwhile counts for nothing."""
LONGEST_WAIT = 90
"""Seconds on the wall, after which a command waits for ever."""
CRASHED = 99
"""Stands for the exit code of a command that an exception ended."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that ended.

    Attributes:
        code: Its exit code; negative for a signal.
        out, err: What it wrote.
        crash: The traceback of the exception that nobody handled.
        touched: What it tried to do that no command may.
    """

    code: int
    out: bytes
    err: bytes
    crash: str
    touched: tuple[str, ...]


def limit_memory():
    """Lets this process have so much more memory than it has now, and no more."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Sandbox:
    """Where the commands of a case run. What it does to this process stays done: tests fork one for it.

    Args:
        place: A folder; the commands run in ``work`` in it, and have ``tmp`` and ``home`` beside that.
    """

    def __init__(self, place):
        self.work, self._place = place / "work", place
        for name in ("work", "tmp", "home"):
            (place / name).mkdir()

    @property
    def environment(self):
        """What a command's environment is."""
        return {
            "HOME": str(self._place / "home"),
            "TMPDIR": str(self._place / "tmp"),
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
        }

    def run(self, arguments, *, stdin=os.devnull, variables=(), encoding="utf-8", main=cli.main):
        """Runs a command, or what a test has instead of one.

        The process ends, with its stacks on standard error, where that takes too long.
        """
        with (
            _limited(sys.__stderr__),
            _restoring(),
            self._redirected(stdin, encoding),
            WATCH.over(self._place) as touched,
        ):
            os.environ.clear()
            os.environ.update({**self.environment, **dict(variables)})
            tempfile.tempdir = None
            os.chdir(self.work)
            code, crash = (_fork if arguments[:1] == ["run"] else _call)(main, arguments)
        written = [(self._place / name).read_bytes() for name in ("out", "err")]
        return Ended(code, *written, crash, tuple(dict.fromkeys(touched)))

    @contextlib.contextmanager
    def _redirected(self, stdin, encoding):
        """Has the three streams lead elsewhere; by Python's own names of them nobody has taken their place."""
        names = ("stdin", "stdout", "stderr", "__stdout__", "__stderr__")
        kept, copies = {name: getattr(sys, name) for name in names}, [os.dup(number) for number in range(3)]
        _lead([os.open(stdin, os.O_RDONLY), self._new("out"), self._new("err")])
        streams = (
            os.fdopen(0, encoding=encoding, closefd=False),
            os.fdopen(1, "w", encoding=encoding, closefd=False),
            os.fdopen(2, "w", encoding=encoding, errors="backslashreplace", closefd=False),
        )
        try:
            for name, stream in zip(names, (*streams, *streams[1:]), strict=True):
                setattr(sys, name, stream)
            yield
        finally:
            _flush()
            _lead(copies)
            for name, stream in kept.items():
                setattr(sys, name, stream)

    def _new(self, name):
        return os.open(self._place / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def _lead(descriptors):
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _flush():
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


@contextlib.contextmanager
def _limited(errors):
    """Ends this process, with its stacks, where what follows takes too long."""
    faulthandler.register(signal.SIGPROF, file=errors, chain=True)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    faulthandler.dump_traceback_later(LONGEST_WAIT, exit=True, file=errors)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.unregister(signal.SIGPROF)


@contextlib.contextmanager
def _restoring():
    """Undoes what a command does to its process, which ends with it elsewhere."""
    environment, folder = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)


def _call(main, arguments):
    """The exit code of a command, and the traceback of what it raised."""
    try:
        return main(arguments), ""
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None), ""
    except BaseException:  # noqa: BLE001  (whatever it is, it is what is looked for)
        return CRASHED, traceback.format_exc()


def _fork(main, arguments):
    """The same for a command that becomes another."""
    # In a copy of this process the thread that waits for the time to be over would be missed for ever.
    faulthandler.cancel_dump_traceback_later()
    reading, writing = os.pipe()
    child = WATCH.allowing(os.fork)
    if not child:
        with _limited(sys.stderr):
            code, crash = _call(main, arguments)
        os.write(writing, crash.encode(errors="backslashreplace")[-4096:])
        _flush()
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8", errors="replace") as said:
        if not select.select([said], [], [], 2 * LONGEST_WAIT)[0]:
            os.kill(child, signal.SIGKILL)
        crash = said.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), crash
