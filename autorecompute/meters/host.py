"""Resident memory of the process, and its high-water mark, as Linux counts them."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

from autorecompute.errors import SetupError
from autorecompute.meters.meter import Reading
from autorecompute.units import KIB

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"


class HostMeter:
    """The process's resident memory (VmRSS) and its high-water mark (VmHWM).

    Raises:
        SetupError: the kernel does not let a process reset its high-water mark.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        # Only a reset shows that it is allowed, and the peak so far may be what is asked for.
        self._earlier_bytes = _read_status("VmHWM")
        try:
            _reset_high_water_mark()
        except OSError as error:
            raise SetupError(
                f"Peaks cannot be measured here: {CLEAR_REFS} cannot be written ({error.strerror}). Run this on a "
                "Linux kernel that lets a process reset its high-water mark; some sandboxes do not."
            ) from error

    def limit(self, limit_bytes: int) -> None:
        """Do nothing: a CPU process is not limited, its peak is held against the limit afterwards.

        Linux can limit a process's address space only, of which resident memory is a small and uncertain part.
        """

    def release(self) -> None:
        """Collect garbage and hand free heap pages back; what an allocator keeps for itself stays."""
        gc.collect()
        self._libc.malloc_trim(0)

    def reset(self) -> None:
        """Set the high-water mark to what is resident now (see proc(5), clear_refs)."""
        _reset_high_water_mark()
        self._earlier_bytes = 0

    def observe(self) -> None:
        """Do nothing."""

    def read(self) -> Reading:
        """Return the high-water mark since the last reset, or since the process began."""
        return Reading(peak_bytes=max(self._earlier_bytes, _read_status("VmHWM")))

    def held_bytes(self) -> int:
        """Resident memory now."""
        return _read_status("VmRSS")

    def outside_bytes(self) -> None:
        """Not known: memory that others use now may be paged out for this process, or grow."""

    def synchronize(self) -> None:
        """Do nothing: CPU work is done when its call returns."""


def _reset_high_water_mark() -> None:
    CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK, encoding="ascii")


def _read_status(field: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * KIB
    raise AssertionError(f"{STATUS} has no {field}")
