"""Private folders, caches, and the lock of a device."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import tempfile
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.files import OTHERS, open_private
from autorecompute.waiting import pause, standing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from autorecompute.training_job import Device


WRITABLE = "Make its folder writable."


@contextlib.contextmanager
def explained(what: str, advice: str) -> Iterator[None]:
    """Raise ``SetupError`` where the system refuses something: what fails, the system's reason, and a way out."""
    try:
        yield
    except OSError as error:
        raise SetupError(f"{what}: {error.strerror}. {advice}") from error


OWNER_AND_NOBODY_ELSE = 0o700


def private_folder(root: Path | None = None) -> Path:
    """Return the user's own folder; made where there is none.

    Its name is known in advance, for all processes of one user have to find the same locks. On a machine with other
    users one of them may have put something else there, so what is there is checked before it is used. It lies in the
    temporary directory, or in ``root`` where that is given.

    Raises:
        SetupError: it cannot be made, or what has its name is not this user's folder alone.
    """
    try:
        folder = (root or Path(tempfile.gettempdir())) / f"autorecompute-{os.geteuid()}"
    except OSError as error:
        raise SetupError(
            "No folder for temporary files can be written. Make room on the disk, or set TMPDIR to a folder of yours."
        ) from error
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
    """Make a new folder in the user's own one below ``root``.

    Raises:
        SetupError: it cannot be made.
    """
    own = private_folder(root)
    try:
        return Path(tempfile.mkdtemp(prefix=prefix, dir=own))
    except OSError as error:
        raise _not_private(own, _reason(error)) from error


def _reason(error: OSError) -> str:
    # The kernel's words for a link that is not to be followed are about something else.
    return "a link or a file stands there" if error.errno in {errno.ELOOP, errno.ENOTDIR} else str(error.strerror)


def _not_private(folder: Path, reason: str) -> SetupError:
    return SetupError(
        f"The folder {folder} for locks and sockets cannot be used: {reason}. Remove it, or set TMPDIR to a folder of "
        "yours."
    )


DIGITS = 16


def compiled_code_of(study: Path) -> Path:
    """Return the folder for the compiled code of a study; whoever compiles makes it.

    It is not in the study's own folder, which may come from elsewhere: compilers run what they find in their caches.
    ``SetupError`` is raised where this user can have no folder that others cannot write to.
    """
    digest = hashlib.sha256(str(study.absolute()).encode(errors="surrogateescape")).hexdigest()
    return private_folder() / f"compiled-{digest[:DIGITS]}"


def cache_variables(study: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return variables that put compilers' caches in a study's folder, but for those that the user has set."""
    names = [name for name in registry.gather("CACHE_VARIABLES") if name not in inherited]
    return {name: str(compiled_code_of(study)) for name in names}


def variables_of_known_code(study: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the same for a process that trains with a study's answer; none where the study has compiled nothing."""
    return cache_variables(study, inherited) if compiled_code_of(study).is_dir() else {}


def forget_compiled_code(study: Path) -> None:
    """Remove the compiled code of a study, whose own folder is gone; raise ``SetupError`` where that fails."""
    folder = compiled_code_of(study)
    with explained(f"{folder} cannot be removed", "Remove it by hand."), contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


LONGEST_PURPOSE = 4096
POLL_SECONDS = 0.5  # between two tries to get a device that is held


@contextlib.contextmanager
def hold_device(device: Device, purpose: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the device while the context lasts; another tuning of this user that holds it is waited for, out of time.

    The lock is the kernel's, so it goes with the process that holds it, however that ends. A card is known by its UUID,
    whatever ``CUDA_VISIBLE_DEVICES`` calls it; a CPU is one device. The next one in line is told the purpose, by a
    sentence to its ``on_wait``.

    Raises:
        SetupError: the lock cannot be opened or held.
    """
    file = lock_file(device)
    advice = "Remove it, or set TMPDIR to a folder of yours."
    with contextlib.ExitStack() as ends:
        with explained(f"The lock {file} of the device cannot be held", advice):
            descriptor = open_private(file)
            ends.callback(os.close, descriptor)
            _lock(descriptor, on_wait)
        _sign(descriptor, purpose)
        yield


def lock_file(device: Device) -> Path:
    """Return the file that stands for the device, for this user."""
    # With older drivers the UUID of a part of a card has slashes in it.
    return private_folder() / f"{urllib.parse.quote(device.uuid or device.kind, safe='')}.lock"


def _lock(descriptor: int, on_wait: Callable[[str], None]) -> None:
    if _is_locked_now(descriptor):
        return
    holder = os.pread(descriptor, LONGEST_PURPOSE, 0).decode(errors="replace").strip()
    on_wait(f"waiting for the device: {holder or 'another tuning'} is measuring on it")
    with standing():
        while not _is_locked_now(descriptor):
            pause(POLL_SECONDS)


def _is_locked_now(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int, purpose: str) -> None:
    # These are words for whoever waits: on a full disk the lock is held without them.
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} ({purpose})".encode(errors="surrogateescape"), 0)
