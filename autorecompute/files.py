"""Files that are written whole or not at all, files that only this user can open, and all files in a folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DRAFT = re.compile(r"\.autorecompute-[0-9a-f]{12}")
"""The names of files that are being written, and of those that a kill left behind."""

OWNER_ONLY = 0o600
OTHERS = 0o077
"""The bits of a mode that let other users in."""


def write_whole(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a text file whole; on any failure what was there before stays.

    Args:
        path: Where.
        text: What.
        is_durable: Whether a loss of power, too, leaves the one text or the other: that costs some milliseconds.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
    # Paths need not be UTF-8: what Python took in as a surrogate goes out as the byte it was.
    write_whole_bytes(path, text.encode("utf-8", errors="surrogateescape"), is_durable=is_durable)


def write_whole_bytes(path: Path, content: bytes, *, is_durable: bool = False) -> None:
    """Write what is no text in the same way.

    Raises:
        OSError: the disk is full, or the place cannot be written.
    """
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
    """Yield all that is no folder, in a folder and below.

    No link is followed, and a folder that cannot be read is told.
    """
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

    Whoever can open a file can hold a lock on it.

    Raises:
        OSError: it cannot be opened, or a link, a pipe or something else that is no file stands there.
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
