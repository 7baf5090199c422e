"""Private folders for the sockets of workers, and the end of those whose owner was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

PREFIX = "autorecompute-"
SOCKET = "worker.sock"
OWNER = "owner.lock"
LONGEST_SOCKET_PATH = 107


class SocketFolder:
    """A folder for one worker, in the temporary directory; those that killed processes left there are removed.

    Its owner holds a lock in it, which is the kernel's and goes with the owner, however that ends: whoever gets the
    lock of a folder knows that nobody needs it. A folder without a lock is left alone.
    """

    def __init__(self) -> None:
        self.path = _make()
        draft = self.path / f"{OWNER}.draft"
        self._lock = draft.open("w", encoding="utf-8")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only now does it have the name that others look for: a lock that is not held yet would be anybody's.
        draft.rename(self.path / OWNER)
        _remove_abandoned(self.path.parent)

    @property
    def address(self) -> str:
        """Where a worker calls."""
        return str(self.path / SOCKET)

    def remove(self) -> None:
        """Removes the folder with all that was written there."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _make() -> Path:
    # A socket's path holds 107 characters at most: a study's folder can be deeper than that, and so can TMPDIR.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    if len(os.fsencode(folder / SOCKET)) <= LONGEST_SOCKET_PATH:
        return folder
    folder.rmdir()
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))


def _remove_abandoned(root: Path) -> None:
    for folder in root.glob(f"{PREFIX}*"):
        # Others may make, lose or protect their folders meanwhile, and none of that is ours to tell.
        with contextlib.suppress(OSError):
            if _is_own_folder(folder):
                _remove_if_abandoned(folder)


def _is_own_folder(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _remove_if_abandoned(folder: Path) -> None:
    lock = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
