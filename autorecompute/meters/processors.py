"""Processor time: what the script takes of it, and what others on the host do."""

from __future__ import annotations

import os
import time

import psutil

TOO_SHORT_SECONDS = 0.2
"""The kernel counts in hundredths of a second: a shorter while says little."""


class Processors:
    """Counts processor time from its creation on.

    Counting reads the kernel's own counters once at each end, some milliseconds, and nothing in between.

    Args:
        tuner: The process that started this one and whatever else belongs to the tuning. What it and all its
            descendants take is not others'. ``None`` stands for this process.
        do_the_work: Whether the processors compute the steps of the training; not so where a GPU does.
    """

    def __init__(self, tuner: int | None, *, do_the_work: bool) -> None:
        self._tuner, self._do_the_work = tuner, do_the_work
        self._began = time.monotonic()
        self._others_seconds = self._read_others()

    def own_seconds(self) -> float | None:
        """Processor time that this process had so far, all its threads together; ``None`` where others do the work."""
        return time.process_time() if self._do_the_work else None

    def others_share(self) -> float | None:
        """Share of the processors that others kept busy since the creation, on average.

        ``None`` where too little time has gone by, or where the processes cannot be read.
        """
        elapsed, others_seconds = time.monotonic() - self._began, self._read_others()
        if elapsed < TOO_SHORT_SECONDS or others_seconds is None or self._others_seconds is None:
            return None
        share = (others_seconds - self._others_seconds) / elapsed / len(os.sched_getaffinity(0))
        return min(max(share, 0.0), 1.0)

    def _read_others(self) -> float | None:
        """Time that the processors this process may use have given to others since the host's start."""
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
