"""Optuna's journal, of which whoever writes into it finds the last line whole."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock

from autorecompute.waiting import OutOfTime, pause

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOCK_SUFFIX = ".lock"
"""What Optuna puts behind the name of a journal for that of its lock."""

LONGEST_LINE = 2**20

GRACE_SECONDS = 30.0
"""Who has held the lock for so long, and written nothing, is gone."""

PROMPT_SECONDS = 1.0
"""Who lives holds the lock for milliseconds: so long it is waited for in any case, as what is written is ready."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 1.0
"""Seconds between two tries: the first time, and at most."""


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

    The link leads to the journal by its name alone. Optuna's own lock has the path at which its maker sees the journal,
    and whoever sees it at another path would look at that link in vain for ever.
    """

    def __init__(self, file: Path) -> None:
        super().__init__(str(file))
        self._file = file
        self._link = file.with_name(f"{file.name}{LOCK_SUFFIX}")
        self._seen: tuple[tuple[int, ...], float] = ((), 0.0)
        """The signs of life when they last changed, and when that was."""

    def acquire(self) -> bool:
        """Waits for the lock, and breaks one that somebody who is gone has left.

        Raises:
            KeyboardInterrupt: the user stopped the command.
            TimeoutError: the command's time is over; or this is a thread of its own, and others hold the lock for long.
        """
        self._take()
        try:
            _cut_to_whole_lines(self._file)
        except BaseException:
            self.release()
            raise
        return True

    def _take(self) -> None:
        began, seconds = time.monotonic(), SHORTEST_PAUSE
        while not self._is_taken():
            if self._is_stale():
                with suppress(RuntimeError):  # another one was first
                    self.release()
                continue
            _wait(seconds, is_prompt=time.monotonic() - began < PROMPT_SECONDS)
            seconds = min(2 * seconds, LONGEST_PAUSE)

    def _is_taken(self) -> bool:
        try:
            self._link.symlink_to(self._file.name)
        except FileExistsError:
            return False
        return True

    def _is_stale(self) -> bool:
        # What changes when the lock changes hands, or somebody writes: of either a network may tell late.
        signs = (*_signs_of(self._link.lstat), *_signs_of(self._file.stat))
        known, since = self._seen
        if signs != known:
            self._seen = signs, time.monotonic()
        return signs == known and time.monotonic() - since > GRACE_SECONDS


def _signs_of(look: Callable[[], os.stat_result]) -> tuple[int, ...]:
    try:
        status = look()
    except OSError:
        return ()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _wait(seconds: float, *, is_prompt: bool) -> None:
    held = TimeoutError(errno.ETIMEDOUT, "another worker holds its lock")
    if is_prompt:
        time.sleep(seconds)
    elif threading.current_thread() is not threading.main_thread():
        # It would take the user's signal for itself, and keep the main thread from the storage meanwhile.
        raise held
    else:
        try:
            pause(seconds)
        except OutOfTime:
            raise held from None


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
