"""Writes files of a study whole or not at all, and says in a sentence what keeps it from that."""

from __future__ import annotations

import errno
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError
from autorecompute.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


def make_folder(path: Path) -> Path:
    """Make a folder of a study, with those above it, where there is none; give it.

    Raises:
        SetupError: the disk is full, or the place cannot be written.
    """
    with saying_what_fails(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_atomically(path: Path, text: str, *, is_durable: bool = False) -> None:
    """Write a text file of a study whole or not at all, also where the power fails if it is to be durable.

    Raises:
        SetupError: the disk is full, or the place cannot be written.
    """
    with saying_what_fails(path):
        write_whole(path, text, is_durable=is_durable)


def stale(files: Mapping[Path, str]) -> dict[Path, str]:
    """Return the files that do not hold their text."""
    return {path: text for path, text in files.items() if not _holds(path, text)}


def write_files(files: Mapping[Path, str]) -> None:
    """Write files, in folders that are made where there are none.

    Raises:
        SetupError: the disk is full, or a place cannot be written.
    """
    for path, text in files.items():
        make_folder(path.parent)
        write_atomically(path, text)


def _holds(path: Path, text: str) -> bool:
    content = text.encode()
    try:
        status = path.lstat()
        # A pipe would be waited for, and a link leads to a file of somebody else's.
        is_like_it = stat.S_ISREG(status.st_mode) and status.st_size == len(content)
        return is_like_it and path.read_bytes() == content
    except OSError:
        return False


@contextmanager
def saying_what_fails(path: Path) -> Iterator[None]:
    """Turn a failure to write into a sentence with a next step.

    Raises:
        SetupError: the disk is full, or the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise SetupError(describe_write_failure(path, error)) from error


def describe_write_failure(path: Path, error: OSError) -> str:
    """Return what went wrong and what to do."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return f"The disk is full at {path}. Trials so far are kept: free some space and run the same command again."
    if error.errno in {errno.ENOTDIR, errno.EEXIST}:
        return f"{path} cannot be written: a file stands where a folder is needed. Move that file, or work elsewhere."
    return f"{path} cannot be written: {error.strerror}. Make it writable, or work in another folder."
