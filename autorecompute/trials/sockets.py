"""Folders for the sockets of workers, and the end of those whose owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError
from autorecompute.files import open_private
from autorecompute.trials.private import make_private_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "worker-"
SOCKET = "worker.sock"
OWNER = "owner.lock"
LONGEST_SOCKET_PATH = 107


class SocketFolder:
    """A folder for one worker, in the user's own temporary folder; those that killed processes left there are removed.

    Its owner holds a lock in it, which is the kernel's and goes with the owner, however that ends: whoever gets the
    lock of a folder knows that nobody needs it. A folder without a lock is left alone.

    Raises:
        SetupError: there is no place for it.
    """

    def __init__(self) -> None:
        self.path = _make()
        draft = self.path / f"{OWNER}.draft"
        with self._saying_what_fails():
            self._lock = os.fdopen(open_private(draft), "wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Only now does it have the name that others look for: a lock that is not held yet would be anybody's.
            draft.rename(self.path / OWNER)
        _remove_abandoned(self.path.parent)

    @property
    def address(self) -> str:
        """Return where a worker calls."""
        return str(self.path / SOCKET)

    def listen(self) -> socket.socket:
        """Return the socket that the worker finds at the address.

        Raises:
            SetupError: it cannot be made.
        """
        listener = socket.socket(socket.AF_UNIX)
        with self._saying_what_fails():
            listener.bind(self.address)
        listener.listen()
        return listener

    def remove(self) -> None:
        """Remove the folder with all that was written there."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()

    @contextlib.contextmanager
    def _saying_what_fails(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SetupError(
                f"The folder {self.path} cannot be used: {error.strerror}. Make room, or set TMPDIR to another folder."
            ) from error


def _make() -> Path:
    # A socket's path holds 107 characters at most: a study's folder can be deeper than that, and so can TMPDIR.
    folder = make_private_folder(PREFIX)
    if len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return make_private_folder(PREFIX, Path("/tmp"))  # noqa: S108  (a private folder in it, which is checked)


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        # Others may make or lose their folders meanwhile, and none of that is ours to tell.
        with contextlib.suppress(OSError):
            _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)  # follows no links
    finally:
        os.close(lock)
