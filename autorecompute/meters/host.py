"""Meters of memory: what each offers, resident memory on a CPU, and the processors of this process."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from pathlib import Path

import psutil

from autorecompute.errors import SetupError
from autorecompute.measurement import Measurement, Outcome
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
        self._earlier_bytes = peak_of_process()
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
        """Do nothing: there is nothing to note while a step runs."""

    def read(self) -> Measurement:
        """Return the high-water mark since the last reset, or since the process began."""
        return Measurement(outcome=Outcome.LOST, peak_bytes=max(self._earlier_bytes, peak_of_process()))

    def held_bytes(self) -> int:
        """Return the resident memory now."""
        return _read_status("VmRSS")

    def outside_bytes(self) -> None:
        """Return nothing: memory that others use now may be paged out for this process, or grow."""

    def synchronize(self) -> None:
        """Do nothing: CPU work is done when its call returns."""

    def mark(self) -> float:
        """Return the time."""
        return time.perf_counter()

    def seconds_between(self, first: float, last: float) -> float:
        """Return the seconds from one mark to another."""
        return last - first


def peak_of_process() -> int:
    """Return the high-water mark of this process's resident memory, in bytes, since its last reset."""
    return _read_status("VmHWM")


def _reset_high_water_mark() -> None:
    CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK, encoding="ascii")


def _read_status(field: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * KIB
    raise AssertionError(f"{STATUS} has no {field}")


TOO_SHORT_SECONDS = 0.2  # the kernel counts in hundredths of a second: a shorter while says little


class Processors:
    """Counts processor time from its creation on.

    Counting reads the kernel's own counters once at each end, some milliseconds, and nothing in between. The ``tuner``
    is the process that started this one, or this one where it is ``None``: time of its descendants is not others'.
    Where a GPU computes the steps, the processors do not ``do_the_work``.
    """

    def __init__(self, tuner: int | None, *, do_the_work: bool) -> None:
        self._tuner, self._do_the_work = tuner, do_the_work
        self._began = time.monotonic()
        self._others_seconds = self._read_others()

    def own_seconds(self) -> float | None:
        """Return the processor time of all threads of this process so far; ``None`` where others do the work."""
        return time.process_time() if self._do_the_work else None

    def others_share(self) -> float | None:
        """Return the share of the processors that others kept busy since the creation, on average.

        ``None`` where too little time has gone by, or where the processes cannot be read.
        """
        elapsed, others_seconds = time.monotonic() - self._began, self._read_others()
        if elapsed < TOO_SHORT_SECONDS or others_seconds is None or self._others_seconds is None:
            return None
        share = (others_seconds - self._others_seconds) / elapsed / len(os.sched_getaffinity(0))
        return min(max(share, 0.0), 1.0)

    def _read_others(self) -> float | None:
        """Return the time that the processors this process may use have given to others since the host's start."""
        try:
            tuner = psutil.Process(self._tuner)
            return _busy_seconds() - sum(map(_seconds_of, [tuner, *tuner.children(recursive=True)]))
        except psutil.Error:
            return None


def _busy_seconds() -> float:
    allowed = os.sched_getaffinity(0)
    every = [times for number, times in enumerate(psutil.cpu_times(percpu=True)) if number in allowed]
    # Linux counts a guest's time as its host's user time too. Stolen time is other machines', so it counts as busy.
    return float(sum(sum(t) - t.idle - t.iowait - t.guest - t.guest_nice for t in every))


def _seconds_of(process: psutil.Process) -> float:
    try:
        # Those of children that have ended are counted with who waited for them.
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
