"""A card that exists on paper."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.units import GIB, MIB


@dataclass(kw_only=True, eq=False)
class FakeCard:
    """A card, or a MIG instance of one. Everything may be changed while it is in use.

    Attributes:
        uuid: As NVML tells it, ``GPU-…`` or ``MIG-…``.
        name: The product's name.
        total_bytes: Its memory.
        driver_bytes: What the driver keeps for itself: neither used nor free.
        processes: Memory in bytes of each process that NVML lists, by process id; ``None`` where it does not tell.
        unlisted_bytes: Memory of processes that NVML does not list, as for those outside a container.
        graphics: Those of ``processes`` that use the card for graphics too, by process id.
        clock_reasons: NVML's bits for what holds the clocks down.
        instances: Its MIG instances.
        is_divided: Whether MIG is on; ``None`` for a card that does not have it.
    """

    uuid: str = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    name: str = "NVIDIA Paper 40GB"
    total_bytes: int = 40 * GIB
    driver_bytes: int = 512 * MIB
    processes: dict[int, int | None] = field(default_factory=dict)
    unlisted_bytes: int = 0
    graphics: set[int] = field(default_factory=set)
    clock_reasons: int = 0
    instances: list[FakeCard] = field(default_factory=list)
    is_divided: bool | None = None

    @property
    def used_bytes(self) -> int:
        """Memory that processes use."""
        return sum(used or 0 for used in self.processes.values()) + self.unlisted_bytes

    @property
    def free_bytes(self) -> int:
        """Memory that can still be had."""
        return self.total_bytes - self.driver_bytes - self.used_bytes
