"""One tuning at a time on a device: two would measure each other."""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autorecompute.measurement import Device


@contextmanager
def hold_device(device: Device, purpose: str, on_wait: Callable[[str], None]) -> Iterator[None]:
    """Holds the device while the context lasts; another tuning that holds it is waited for.

    The lock is the kernel's, so it goes with the process that holds it, however that ends.

    Args:
        device: Known by its UUID, so that ``CUDA_VISIBLE_DEVICES`` can call it anything; a CPU is one device.
        purpose: What the next one in line is told.
        on_wait: Called with a sentence on who holds the device, if somebody does.
    """
    with lock_file(device).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            on_wait(f"waiting for the device: {file.read().strip() or 'another tuning'} is measuring on it")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()} ({purpose})")
        file.flush()
        yield


def lock_file(device: Device) -> Path:
    """The file that stands for the device, for this user."""
    return Path(tempfile.gettempdir()) / f"autorecompute-{os.getuid()}-{device.uuid or device.kind}.lock"
