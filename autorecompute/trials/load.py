"""What the rest of the host does while a worker is measured."""

from __future__ import annotations

import time

import psutil

TOO_SHORT_SECONDS = 0.2
"""The kernel counts in hundredths of a second: a shorter while says little."""

NEGLIGIBLE_SHARE = 0.1
"""So much of all cores is busy on any host."""


class HostLoad:
    """Counts, from its creation on, what processes other than the worker's and this one take of the processors.

    Counting reads the kernel's own counters once at each end, some milliseconds, and nothing in between.

    Args:
        pid: The worker; its children are its own.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began = time.monotonic()
        self._others_seconds = _others_seconds(pid)

    def others(self) -> float:
        """Cores that others kept busy since then, on average; 0 where too little time has gone by.

        Raises:
            psutil.Error: the worker is gone.
        """
        elapsed = time.monotonic() - self._began
        if elapsed < TOO_SHORT_SECONDS:
            return 0.0
        return max(_others_seconds(self._pid) - self._others_seconds, 0.0) / elapsed

    def marks(self) -> tuple[str, ...]:
        """``host busy: 1.4 of 2 cores by others``; nothing on a host at rest, or where the worker is gone."""
        try:
            return describe(self.others(), psutil.cpu_count() or 1)
        except psutil.Error:
            return ()


def describe(others: float, cores: int) -> tuple[str, ...]:
    """The mark for so many cores that others keep busy."""
    return (f"host busy: {others:.1f} of {cores} cores by others",) if others > NEGLIGIBLE_SHARE * cores else ()


def _others_seconds(pid: int) -> float:
    """Processor time since the host's start that neither the worker nor this process had."""
    worker = psutil.Process(pid)
    members = [worker, *worker.children(recursive=True)]
    own = psutil.Process().cpu_times()
    return _busy_seconds() - own.user - own.system - sum(map(_tree_seconds, members))


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    # Linux counts a guest's time as its host's user time too. Stolen time is another machine's, and missed here.
    at_rest = times.idle + times.iowait + times.guest + times.guest_nice
    return float(sum(times) - at_rest)


def _tree_seconds(process: psutil.Process) -> float:
    try:
        # Those of children that have ended are counted with who waited for them.
        return float(sum(process.cpu_times()[:4]))
    except psutil.NoSuchProcess:
        return 0.0
