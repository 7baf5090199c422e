"""What one card, or one MIG instance of a card, tells about itself through NVML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autorecompute.meters.nvml import Nvml, NvmlUnsupportedError
from autorecompute.units import GIB

CONTEXT_BYTES = GIB
"""So much may a process have on the card beside its allocator: the CUDA context, and kernels of cuBLAS and cuDNN."""

CLOCK_EVENTS = {
    0x004: "power cap",  # SwPowerCap
    0x008: "hardware slowdown",  # HwSlowdown, beside one of the two Hw reasons below where the cause is known
    0x010: "sync boost",  # SyncBoost: held to the clocks of another card
    0x020: "thermal slowdown",  # SwThermalSlowdown
    0x040: "hardware thermal slowdown",  # HwThermalSlowdown
    0x080: "power brake",  # HwPowerBrakeSlowdown: the power supply asks for less
}
"""NVML's bits for what holds the clocks down. An idle card and clocks that an administrator fixed are not among them:
the first says nothing about the steps, the second holds for all of them alike."""

_CLOCK_QUESTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
"""One question under two names: drivers before 535 know the second only, and CUDA 14 is to drop it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardMemory:
    """Memory of a card as the driver counts it.

    Attributes:
        total_bytes: All of it.
        used_bytes: In use by processes, contexts included. Drivers before 510 count in what they keep for themselves.
        free_bytes: What an allocation can still get.
    """

    total_bytes: int
    used_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other processes on the card.

    Attributes:
        used_bytes: Memory they use.
        is_counted: Whether NVML counted them process by process; otherwise the figure is what this process does not
            account for, less :data:`CONTEXT_BYTES`.
    """

    used_bytes: int
    is_counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card or a MIG instance, the same one where the UUID is. A question without an answer raises an ``NvmlError``.

    Attributes:
        nvml: Where it is asked.
        handle: NVML's handle of it.
        whole: NVML's handle of the physical card; another one than ``handle`` for a MIG instance.
        uuid: ``GPU-…`` or ``MIG-…``.
        name: The product's name.
    """

    nvml: Nvml = field(compare=False, repr=False)
    handle: Any = field(compare=False, repr=False)
    whole: Any = field(compare=False, repr=False)
    uuid: str
    name: str

    @property
    def is_instance(self) -> bool:
        """Tell whether it is a MIG instance."""
        return self.uuid.startswith("MIG-")

    def memory(self) -> CardMemory:
        """Return its memory now."""
        try:
            figures = self.nvml.ask("nvmlDeviceGetMemoryInfo", self.handle, self.nvml.constant("nvmlMemory_v2"))
        except NvmlUnsupportedError:
            figures = self.nvml.ask("nvmlDeviceGetMemoryInfo", self.handle)
        return CardMemory(total_bytes=int(figures.total), used_bytes=int(figures.used), free_bytes=int(figures.free))

    def clock_events(self) -> tuple[str, ...]:
        """Return what holds the clocks down at this moment, in words; a MIG instance shares them with its card."""
        reasons = self._ask_clocks()
        return tuple(words for bit, words in CLOCK_EVENTS.items() if reasons & bit)

    def _ask_clocks(self) -> int:
        newer, older = _CLOCK_QUESTIONS
        try:
            return int(self.nvml.ask(newer, self.whole))
        except NvmlUnsupportedError:
            return int(self.nvml.ask(older, self.whole))

    def processes(self) -> dict[int, int | None]:
        """Bytes of each process on it, ``None`` where the driver does not tell; process ids are the host's."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in self.nvml.ask(f"nvmlDeviceGet{kind}RunningProcesses", self.handle):
                # A process of both kinds is listed twice with the same figure.
                found[process.pid] = process.usedGpuMemory
        return found

    def neighbours(self, pid: int, held_bytes: int) -> Neighbours:
        """Return what other processes use.

        A container has process ids of its own, and NVML tells the host's or none at all. So the list is believed where
        this process stands in it; otherwise all memory that this process does not account for is taken for others'.

        Args:
            pid: This process.
            held_bytes: Memory its allocator has reserved.
        """
        try:
            processes = self.processes()
        except NvmlUnsupportedError:
            processes = {}
        figures = [used for each, used in processes.items() if each != pid]
        counted = [used for used in figures if used is not None]
        if pid in processes and len(counted) == len(figures):
            return Neighbours(used_bytes=sum(counted), is_counted=True)
        unaccounted = self.memory().used_bytes - held_bytes - CONTEXT_BYTES
        return Neighbours(used_bytes=max(unaccounted, 0), is_counted=False)
