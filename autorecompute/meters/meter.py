"""What every meter offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Memory at its highest since the last reset.

    Attributes:
        peak_bytes: What the memory limit holds: resident memory on a CPU, memory the allocator reserved on CUDA.
        allocated_bytes: CUDA only: memory in live tensors.
        device_bytes: CUDA only: memory in use on the whole card, by NVML, CUDA context and other processes included.
        retries: CUDA only: how often the allocator had to give all its free blocks back before a request could be met.
        marks: What else happened meanwhile that a reader of the figures should know, in words.
    """

    peak_bytes: int
    allocated_bytes: int | None = None
    device_bytes: int | None = None
    retries: int | None = None
    marks: tuple[str, ...] = ()


class Meter(Protocol):
    """Watches the memory of the process it runs in."""

    def limit(self, limit_bytes: int) -> None:
        """Make allocations beyond the limit fail, where that can be done: a smaller device is played."""
        ...

    def release(self) -> None:
        """Give memory that is free inside the process back to the system, so that it does not count as held."""
        ...

    def reset(self) -> None:
        """Forget the peak so far."""
        ...

    def observe(self) -> None:
        """Look at the device while it works on a timed step; must cost next to nothing."""
        ...

    def read(self) -> Reading:
        """Return the peak since the last reset, or since the process began."""
        ...

    def held_bytes(self) -> int:
        """Memory held now, in the measure of ``peak_bytes``."""
        ...

    def outside_bytes(self) -> int | None:
        """Memory of the device that this process's allocator can never have; ``None`` where nobody can tell."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all work asked of it."""
        ...
