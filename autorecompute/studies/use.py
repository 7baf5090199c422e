"""Whether a process uses a study: the kernel knows which files each one has open."""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

import psutil

from autorecompute.errors import UsageError
from autorecompute.files import open_private
from autorecompute.studies.writing import saying_what_fails

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.studies.folder import StudyFolder

LOCK = ".lock"


def find_user(folder: StudyFolder) -> int | None:
    """Return the process that has a file of the study open; ``None`` where none has that can be seen from here.

    A tuning keeps its lock or its database open, and its workers their logs, waiting or not. Seen are processes of this
    machine that belong to this user.
    """
    inside = f"{os.path.realpath(folder.path)}{os.sep}"
    for process in psutil.process_iter():
        if process.pid != os.getpid() and _has_open(process, inside):
            return process.pid
    return None


def require_unused(folder: StudyFolder) -> None:
    """Check that no tuning of the study is under way.

    Raises:
        UsageError: a process uses it.
    """
    user = find_user(folder)
    if user is not None:
        raise UsageError(_in_use(folder, user))


@contextlib.contextmanager
def using(folder: StudyFolder) -> Iterator[None]:
    """Have the study to itself while the context lasts: two tunings would number their trials alike.

    The lock is the kernel's and goes with the process, however that ends. It is on a file that only this user can open:
    the folder itself could be locked by everybody who can read it.

    Raises:
        UsageError: another process tunes it.
        SetupError: the file cannot be opened.
    """
    file = folder.path / LOCK
    with saying_what_fails(file):
        descriptor = open_private(file)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(_in_use(folder, find_user(folder))) from None
        except OSError:
            require_unused(folder)  # a network's file system may have no locks
        yield
    finally:
        os.close(descriptor)


def _in_use(folder: StudyFolder, user: int | None) -> str:
    who = "Another process" if user is None else f"Process {user}"
    return f"{who} is using study '{folder.name}'. Wait for it, or end it with Ctrl-C."


def _has_open(process: psutil.Process, inside: str) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        return any(file.path.startswith(inside) for file in process.open_files())
    return False
