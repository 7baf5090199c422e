"""Optuna's journal, of which whoever writes into it finds the last line whole."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

if TYPE_CHECKING:
    from pathlib import Path

LOCK_SUFFIX = ".lock"
"""What Optuna puts behind the name of a journal for that of its lock."""

LONGEST_LINE = 2**20


def open_journal(file: Path) -> JournalStorage:
    """The journal in a file, begun where there is none.

    Raises:
        OSError: the file cannot be read or written.
        ValueError: it is no journal.
    """
    if file.parent.exists() and not file.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "there is a file where its folder has to be")
    file.parent.mkdir(parents=True, exist_ok=True)
    _require_journal(file)
    return JournalStorage(JournalFileBackend(str(file), _MendingLock(file)))


class _MendingLock(JournalFileSymlinkLock):
    """The lock of a journal; who gets it cuts off what a full disk, or a kill, left of a line.

    Readers pass over half a line at the end, but none could read on once another line was glued to it.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file

    def acquire(self) -> bool:
        """Waits for the lock."""
        is_held = super().acquire()
        try:
            _cut_to_whole_lines(self._file)
        except BaseException:
            self.release()
            raise
        return is_held


def _cut_to_whole_lines(file: Path) -> None:
    with file.open("r+b") as journal:
        if journal.seek(0, os.SEEK_END) == 0:
            return
        journal.seek(-1, os.SEEK_END)
        if journal.read(1) != b"\n":
            journal.seek(0)
            journal.truncate(journal.read().rfind(b"\n") + 1)


def _require_journal(file: Path) -> None:
    """Checks that a file is one of Optuna's journals, or empty: Optuna would write into any other, too.

    Raises:
        ValueError: it is something else.
        OSError: it cannot be read, or there is a file or a folder where its lock has to be, which is a link.
    """
    lock = file.with_name(f"{file.name}{LOCK_SUFFIX}")
    # One look: between two, another worker may have let the lock go.
    if _kind(lock) not in (None, stat.S_IFLNK):
        raise FileExistsError(errno.EEXIST, f"{lock.name} stands where its lock has to be")
    if not file.exists():
        return
    if not (file.is_file() or file.is_dir()):
        # A pipe would be waited for, and a device holds nothing.
        raise ValueError("no file")
    with file.open("rb") as journal:
        first = journal.readline(LONGEST_LINE)
    if first and not first.startswith(b'{"op_code":'):
        raise ValueError("no journal")


def _kind(path: Path) -> int | None:
    """What stands at a path, as ``stat`` names the kinds; a link is not followed. ``None`` where nothing does."""
    try:
        return stat.S_IFMT(path.lstat().st_mode)
    except FileNotFoundError:
        return None
