"""Sees what a command does to files, processes and the network, and keeps it from what no command may do."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from urllib.parse import unquote

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ForbiddenError(BaseException):
    """Ends a command before it changes what is not its own, whoever runs the tests."""


class Watch:
    """Notes and prevents what no command may do, by Python's audit events."""

    def __init__(self):
        self._allowed, self._touched, self._is_hooked = (), None, False

    @contextlib.contextmanager
    def over(self, place):
        """Watches this process meanwhile; gives the list of what it tries.

        Args:
            place: The folder that it may change things in.
        """
        if not self._is_hooked:
            sys.addaudithook(self._hear)
            self._is_hooked = True
        self._allowed = tuple(f"{place}/{name}/" for name in ("work", "tmp", "home"))
        touched = self._touched = []
        try:
            yield touched
        finally:
            self._touched = None

    def allowing(self, call):
        """What a function returns that may do anything."""
        touched, self._touched = self._touched, None
        try:
            return call()
        finally:
            self._touched = touched

    def _hear(self, event, arguments):
        if self._touched is None:
            return
        if event == "open":
            path, _, flags = arguments
            if flags & _WRITES and not isinstance(path, int):
                self._require_inside(event, path)
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._require_inside(event, path, follows=event in _FOLLOWING)
        elif event == "sqlite3.connect":
            self._require_inside(event, unquote(str(arguments[0]).removeprefix("file:").partition("?")[0]))
        elif event in _FORBIDDEN:
            self._refuse(f"{event}: {arguments!r}")

    def _require_inside(self, event, path, *, follows=True):
        if isinstance(path, int):
            return
        path = Path(os.fsdecode(path))
        real = os.path.realpath(path) if follows else f"{os.path.realpath(path.parent)}/{path.name}"
        if not real.startswith(self._allowed) and real != os.devnull:
            self._refuse(f"{event}: {path} is {real}")

    def _refuse(self, text):
        touched, self._touched = self._touched, None
        touched.append(text)
        self._touched = touched
        raise ForbiddenError(text)


WATCH = Watch()
"""A hook cannot be taken away again: there is one for the process."""

_CHANGES = {
    "os.remove": 1,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.rename": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "os.link": 2,
}
"""Events by how many of their arguments are paths that are changed."""

_FOLLOWING = {"os.truncate", "os.chmod", "os.chown", "os.utime"}

_FORBIDDEN = {
    "os.system",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "socket.getaddrinfo",
    "pickle.find_class",
    "urllib.Request",
}
"""What nothing that only reads a study does."""
