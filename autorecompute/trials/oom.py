"""Whether the kernel has killed for want of memory: an exit by SIGKILL alone does not tell who sent it.

The kernel counts such a kill for the control group that the killed process was in, whoever had no memory left: that
group, one above it, or the machine. A group's own count is therefore decisive both ways: where it stands still,
somebody else was killed. The machine's count is asked only where no group of the worker's can be read.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PROC = Path("/proc")
FIELD = "oom_kill"


class OomKills:
    """Notices kills by the kernel among a worker's processes, from the moment on at which each is first followed."""

    def __init__(self) -> None:
        self._machine = _count(PROC / "vmstat") or 0
        self._groups: dict[int, dict[Path, int]] = {}

    def follow(self, pid: int) -> None:
        """Watch the control group that a process is in now; a launcher may have put it into one of its own."""
        counts = {counter: _count(counter) for counter in _counters_of(pid)}
        self._groups[pid] = {counter: count for counter, count in counts.items() if count is not None}

    def has_risen(self) -> bool:
        """Tell whether the kernel killed one of them, as far as its counters can tell."""
        answers = [_has_risen(counters) for counters in self._groups.values()]
        if None in answers or not answers:
            answers.append((_count(PROC / "vmstat") or 0) > self._machine)
        return any(answers)


class _Mount(NamedTuple):
    """Where a hierarchy of control groups can be read, and which of its groups is shown there."""

    kind: str
    shown: PurePosixPath
    point: Path
    options: list[str]


def _has_risen(counters: dict[Path, int]) -> bool | None:
    """Return what the first counter says that is still there: a group may go away with its last process."""
    for counter, before in counters.items():
        now = _count(counter)
        if now is not None:
            return now > before
    return None


def _counters_of(pid: int) -> Iterator[Path]:
    """Files that count the kills among the processes of its group, the narrowest first."""
    mounts = list(_mounts())
    for line in _lines(PROC / str(pid) / "cgroup"):
        _, controllers, group = line.split(":", 2)
        for mount in mounts:
            if not PurePosixPath(group).is_relative_to(mount.shown):
                continue
            folder = mount.point / PurePosixPath(group).relative_to(mount.shown)
            if mount.kind == "cgroup" and "memory" in controllers.split(",") and "memory" in mount.options:
                yield folder / "memory.oom_control"
            elif mount.kind == "cgroup2" and not controllers:
                # A group without the memory controller is counted with the one above it; each counts those below.
                above = [place for place in folder.parents if place.is_relative_to(mount.point)]
                yield from (place / "memory.events" for place in (folder, *above))


def _mounts() -> Iterator[_Mount]:
    for line in _lines(PROC / "self" / "mountinfo"):
        place, _, system = line.partition(" - ")
        kind, *_, options = system.split(" ")
        _, _, _, shown, point, *_ = place.split(" ")
        yield _Mount(kind, PurePosixPath(shown), Path(point), options.split(","))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _count(counter: Path) -> int | None:
    """Kill so far; ``None`` where nothing counts them."""
    values = [value for name, _, value in (line.partition(" ") for line in _lines(counter)) if name == FIELD]
    return int(values[0]) if values else None
