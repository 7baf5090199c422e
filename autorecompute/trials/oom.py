"""Whether the kernel has killed for want of memory: an exit by SIGKILL alone does not tell who sent it."""

from __future__ import annotations

from pathlib import Path

COUNTERS = (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events"))
"""The machine's counter of such kills, and this control group's, where there is one."""

FIELD = "oom_kill"


def count_oom_kills() -> int:
    """Kills so far, summed over all counters that can be read; only a difference means something."""
    return sum(_read(counter) for counter in COUNTERS)


def _read(counter: Path) -> int:
    try:
        lines = counter.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(value) for name, _, value in (line.partition(" ") for line in lines) if name == FIELD)
