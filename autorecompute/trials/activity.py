"""Whether processes that say nothing are at work."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path

LEAST_SHARE = 0.01
"""Of one processor: who waits for nothing but looks around now and then takes less."""


class Activity:
    """Looks at what a process and its descendants do, from one call to the next.

    Args:
        pid: The process.
        log: What they print to.
    """

    def __init__(self, pid: int, log: Path) -> None:
        self._pid, self._log = pid, log
        self._seen = self._look()

    def has_gone_on(self) -> bool:
        """Tell whether they have printed, or kept a processor busy, since this was asked last."""
        (before, seconds, size), self._seen = self._seen, self._look()
        now, used, printed = self._seen
        return printed != size or used - seconds >= LEAST_SHARE * (now - before)

    def _look(self) -> tuple[float, float, int]:
        """Return the time, the processor time that they have had, and the length of what they have printed."""
        try:
            first = psutil.Process(self._pid)
            # Those of children that have ended are counted with who waited for them.
            used = sum(sum(one.cpu_times()[:4]) for one in [first, *first.children(recursive=True)])
        except psutil.Error:  # one of them has just ended
            used = 0.0
        return time.monotonic(), used, self._log.stat().st_size if self._log.is_file() else 0
