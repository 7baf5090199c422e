"""The folder in the temporary directory that belongs to this user alone: device locks, sockets and logs lie in it."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from autorecompute.errors import SetupError
from autorecompute.files import OTHERS

OWNER_AND_NOBODY_ELSE = 0o700


def private_folder(root: Path | None = None) -> Path:
    """Return the user's own folder; made where there is none.

    Its name is known in advance, for all processes of one user have to find the same locks. On a machine with other
    users one of them may have put something else there, so what is there is checked before it is used.

    Args:
        root: Where it lies; the temporary directory where none is given.

    Raises:
        SetupError: it cannot be made, or what has its name is not this user's folder alone.
    """
    folder = (temporary_directory() if root is None else root) / f"autorecompute-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=OWNER_AND_NOBODY_ELSE)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise _not_private(folder, _reason(error)) from error
    try:
        status = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise _not_private(folder, "it belongs to another user")
    if status.st_mode & OTHERS:
        raise _not_private(folder, "other users can look into it")
    return folder


def make_private_folder(prefix: str, root: Path | None = None) -> Path:
    """Make a new folder in the user's own.

    Args:
        prefix: What its name begins with.
        root: Where the user's own folder lies; the temporary directory where none is given.

    Raises:
        SetupError: it cannot be made.
    """
    own = private_folder(root)
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=own))
    except OSError as error:
        raise _not_private(own, _reason(error)) from error


def temporary_directory() -> Path:
    """Return the folder for temporary files, from ``TMPDIR`` or the system.

    Raises:
        SetupError: there is none that can be written.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise SetupError(
            "No folder for temporary files can be written. Make room on the disk, or set TMPDIR to a folder of yours."
        ) from error


def _reason(error: OSError) -> str:
    # The kernel's words for a link that is not to be followed are about something else.
    return "a link or a file stands there" if error.errno in {errno.ELOOP, errno.ENOTDIR} else str(error.strerror)


def _not_private(folder: Path, reason: str) -> SetupError:
    return SetupError(
        f"The folder {folder} for locks and sockets cannot be used: {reason}. Remove it, or set TMPDIR to a folder of "
        "yours."
    )
