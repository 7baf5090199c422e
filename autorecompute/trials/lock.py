"""One tuning at a time on a device: two would measure each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import urllib.parse
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError
from autorecompute.files import open_private
from autorecompute.trials.private import private_folder
from autorecompute.waiting import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from autorecompute.training_job import Device

LONGEST_PURPOSE = 4096

POLL_SECONDS = 0.5
"""Between two tries to get a device that is held."""


@contextlib.contextmanager
def hold_device(device: Device, purpose: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Hold the device while the context lasts; another tuning of this user that holds it is waited for.

    The lock is the kernel's, so it goes with the process that holds it, however that ends.

    Args:
        device: Known by its UUID, so that ``CUDA_VISIBLE_DEVICES`` can call it anything; a CPU is one device.
        purpose: What the next one in line is told.
        on_wait: Called with a sentence on who holds the device, if somebody does.

    Raises:
        OutOfTime: the time was over before the device was free.
        SetupError: the lock cannot be opened or held.
    """
    file = lock_file(device)
    with _saying_what_fails(file):
        descriptor = open_private(file)
    try:
        with _saying_what_fails(file):
            _lock(descriptor, on_wait)
        _sign(descriptor, purpose)
        yield
    finally:
        os.close(descriptor)


def lock_file(device: Device) -> Path:
    """Return the file that stands for the device, for this user.

    Raises:
        SetupError: there is no folder for it that belongs to this user alone.
    """
    # With older drivers the UUID of a part of a card has slashes in it.
    return private_folder() / f"{urllib.parse.quote(device.uuid or device.kind, safe='')}.lock"


def _lock(descriptor: int, on_wait: Callable[[str], None]) -> None:
    if _is_locked_now(descriptor):
        return
    holder = os.pread(descriptor, LONGEST_PURPOSE, 0).decode(errors="replace").strip()
    on_wait(f"waiting for the device: {holder or 'another tuning'} is measuring on it")
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


@contextlib.contextmanager
def _saying_what_fails(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SetupError(
            f"The lock {file} of the device cannot be held: {error.strerror}. Remove it, or set TMPDIR to a folder of "
            "yours."
        ) from error
