"""Files written whole, locks, and the files that a user names on a command line.

What is wrong with a file that the user named is told by a ``UsageError``, a fault of the machine by a ``SetupError``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import AutorecomputeError, SetupError, UsageError

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator


DRAFT = re.compile(r"\.autorecompute-[0-9a-f]{12}")
"""The names of files that are being written, and of those that a kill left behind."""

OWNER_ONLY = 0o600
OTHERS = 0o077  # the bits of a mode that let other users in


def write_whole(path: Path, content: str | bytes, *, is_durable: bool = False) -> None:
    """Write a file whole; on any failure, which an ``OSError`` tells, what was there before stays.

    If it is to be durable, a loss of power, too, leaves the one content or the other: that costs some milliseconds.
    """
    if isinstance(content, str):
        # Paths need not be UTF-8: what Python took in as a surrogate goes out as the byte it was.
        content = content.encode("utf-8", errors="surrogateescape")
    # Process ids are no names: containers that share a folder may each have the same. Nor is the file's own name a part
    # of it, which may be as long as one can be.
    draft = path.with_name(f".autorecompute-{uuid.uuid4().hex[:12]}")
    try:
        draft.write_bytes(content)
        if is_durable:
            # The new name may reach the disk before the content does, which would leave an empty file.
            _flush(draft)
        draft.replace(path)
        if is_durable:
            with contextlib.suppress(OSError):  # some file systems cannot do this for a folder
                _flush(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def walk(folder: Path) -> Iterator[Path]:
    """Yield all that is no folder, in a folder and below: links unfollowed, and folders that cannot be read."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        yield folder
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from walk(folder / entry.name)
        else:
            yield folder / entry.name


def open_private(path: Path) -> int:
    """Open a file for a lock, made where there is none, that other users cannot open; give its descriptor.

    Whoever can open a file can hold a lock on it. An ``OSError`` says that what stands there is no file.
    """
    # A pipe would be waited for, and the target of a link is not ours to open.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, OWNER_ONLY)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise FileExistsError(None, "something that is no file stands there", str(path))
    if mode & OTHERS:
        with contextlib.suppress(OSError):  # some file systems have no modes
            os.fchmod(descriptor, OWNER_ONLY)
    return descriptor


FAULTS_OF_THE_MACHINE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO}
"""Failures of a disk, where the path itself is right."""

LONGEST_SHOWN = 120


def shown(path: Path | str) -> str:
    """Return the path as a message has it: in quotes, on one line, without its middle where it is long."""
    text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(path))
    half = LONGEST_SHOWN // 2
    return f"'{text}'" if len(text) <= LONGEST_SHOWN else f"'{text[:half]}…{text[-half:]}'"


def is_file(path: Path) -> bool:
    """Tell whether there is a regular file that can be reached; a name that is too long to be one is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def open_named(file: Path, advice: str) -> io.BufferedReader:
    """Open a file that the user named to read it; ``advice`` says what to do where that cannot be read.

    A named pipe is refused: one that nobody writes would be waited for, for ever.
    """
    try:
        # A pipe that the shell made, as for <(command), has no path of its own, and somebody writes it.
        if file.is_fifo() and Path(os.path.realpath(file)).exists():
            raise UsageError(f"{shown(file)} is a pipe. {advice}")
        return file.open("rb")
    except OSError as error:
        raise UsageError(f"{shown(file)} cannot be read: {error.strerror}. {advice}") from error


def require_place(file: Path, *, force: bool) -> None:
    """Check that a file can be made or replaced there, before anything is done for it."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        if not file.absolute().parent.is_dir():
            raise UsageError(f"There is no folder {shown(file.parent)}. Make it, or name another file.") from None
        return
    except OSError as error:
        raise _cannot_be_written(file, error) from error
    if not stat.S_ISREG(mode):
        raise UsageError(f"{shown(file)} is no regular file. Give the path of a file.")
    if not force:
        raise UsageError(f"{shown(file)} exists already. Add --force to replace it.")


def write_named(file: Path, content: str | bytes, *, force: bool) -> None:
    """Write a file whole or not at all; where the user named a link, what it leads to."""
    require_place(file, force=force)
    try:
        write_whole(Path(os.path.realpath(file)), content)
    except OSError as error:
        raise _cannot_be_written(file, error) from error


def _cannot_be_written(file: Path, error: OSError) -> AutorecomputeError:
    what = f"{shown(file)} cannot be written: {error.strerror}."
    if error.errno in FAULTS_OF_THE_MACHINE:
        return SetupError(f"{what} Make room or mend the disk, or give a file on another one.")
    return UsageError(f"{what} Give a file in a folder of yours.")
