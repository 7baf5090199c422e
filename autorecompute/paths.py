"""Files that the user names on a command line: whatever is wrong with one is told in a sentence."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import AutorecomputeError, SetupError, UsageError
from autorecompute.files import write_whole_bytes

if TYPE_CHECKING:
    import io

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


def names_in(folder: Path) -> list[str]:
    """Return the names of all that is in a folder; none where there is no folder.

    Raises:
        SetupError: it cannot be read.
    """
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SetupError(
            f"The folder {shown(folder)} cannot be read: {error.strerror}. Make it readable, or work in another one."
        ) from error


def open_named(file: Path, advice: str) -> io.BufferedReader:
    """Open a file to read it.

    Args:
        file: What the user named.
        advice: The sentence that says what to do where that cannot be read.

    Raises:
        UsageError: it cannot be read, or is a named pipe: one that nobody writes would be waited for, for ever.
    """
    try:
        # A pipe that the shell made, as for <(command), has no path of its own, and somebody writes it.
        if file.is_fifo() and Path(os.path.realpath(file)).exists():
            raise UsageError(f"{shown(file)} is a pipe. {advice}")
        return file.open("rb")
    except OSError as error:
        raise UsageError(f"{shown(file)} cannot be read: {error.strerror}. {advice}") from error


def require_place(file: Path, *, force: bool) -> None:
    """Check that a file can be made or replaced there, before anything is done for it.

    Args:
        file: What the user named.
        force: Whether a file may be replaced.

    Raises:
        UsageError: there is a file that may not be replaced or something that is none, or there can be no file.
    """
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


def write_named(file: Path, content: bytes, *, force: bool) -> None:
    """Write a file whole or not at all; where the user named a link, what it leads to.

    Args:
        file: What the user named.
        content: What it is to hold.
        force: Whether a file may be replaced.

    Raises:
        UsageError: there is a file that may not be replaced or something that is none, or there can be no file.
        SetupError: the disk is full, read-only or broken.
    """
    require_place(file, force=force)
    try:
        write_whole_bytes(Path(os.path.realpath(file)), content)
    except OSError as error:
        raise _cannot_be_written(file, error) from error


def _cannot_be_written(file: Path, error: OSError) -> AutorecomputeError:
    what = f"{shown(file)} cannot be written: {error.strerror}."
    if error.errno in FAULTS_OF_THE_MACHINE:
        return SetupError(f"{what} Make room or mend the disk, or give a file on another one.")
    return UsageError(f"{what} Give a file in a folder of yours.")
