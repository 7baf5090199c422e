"""Memory of torch's CUDA allocator, with the driver's own count beside it."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from autorecompute.measurement import Measurement, Outcome
from autorecompute.meters.host import HostMeter
from autorecompute.meters.nvml import NvmlError, find_card
from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from autorecompute.meters.nvml import Card

T = TypeVar("T")
NEGLIGIBLE_BYTES = 64 * MIB  # of a display server or a monitoring daemon on a card, which are no news


class CudaMeter:
    """The CUDA device that this process trains on. Where NVML does not answer, its figures are ``None``: nothing fails.

    It is made once the model has been placed.
    """

    def __init__(self) -> None:
        import torch

        self._cuda = torch.cuda
        self._index = _index_in_use(torch.cuda)
        properties = torch.cuda.get_device_properties(self._index)
        self._total_bytes = int(properties.total_memory)
        self._card: Card | None = None
        with suppress(NvmlError):
            self._card = find_card(str(properties.uuid))
        # Insertion order is that of a user's reading: a dict keeps it where a set would not.
        self._clock_events: dict[str, None] = {}
        self._earlier_retries = 0

    def limit(self, limit_bytes: int) -> None:
        """Let the allocator reserve no more than this, so that a smaller card is played on this one.

        The CUDA context lies outside. A limit beyond the card's memory is none.
        """
        self._cuda.set_per_process_memory_fraction(min(limit_bytes / self._total_bytes, 1.0), self._index)

    def release(self) -> None:
        """Collect garbage and hand cached blocks back to the driver."""
        gc.collect()
        self._cuda.empty_cache()

    def reset(self) -> None:
        """Set the allocator's peaks to what is held now, and forget what was observed."""
        self._cuda.reset_peak_memory_stats(self._index)
        self._earlier_retries = self._count_retries() or 0
        self._clock_events.clear()

    def observe(self) -> None:
        """Note what holds the clocks down; once the device is idle, NVML would tell of that alone."""
        self._clock_events |= dict.fromkeys(self._ask_card(lambda card: card.clock_events()) or ())

    def read(self) -> Measurement:
        """Return the allocator's peaks; the driver's figure is what is in use now, which a cached peak keeps."""
        total = self._count_retries()
        retries = None if total is None else total - self._earlier_retries
        return Measurement(
            outcome=Outcome.LOST,
            peak_bytes=self._cuda.max_memory_reserved(self._index),
            allocated_bytes=self._cuda.max_memory_allocated(self._index),
            device_bytes=self._ask_card(lambda card: card.memory_bytes("used")),
            retries=retries,
            marks=(*self._clock_events, *_mark_retries(retries), *self._mark_neighbours()),
        )

    def held_bytes(self) -> int:
        """Return the memory that the allocator has reserved now."""
        return int(self._cuda.memory_reserved(self._index))

    def outside_bytes(self) -> int:
        """Return the memory in use beside this allocator: the CUDA context, the driver's own, other processes."""
        free_bytes = self._ask_card(lambda card: card.memory_bytes("free"))
        if free_bytes is None:
            free_bytes = int(self._cuda.mem_get_info(self._index)[0])
        return max(self._total_bytes - free_bytes - self.held_bytes(), 0)

    def synchronize(self) -> None:
        """Wait for all kernels of the device."""
        self._cuda.synchronize(self._index)

    def mark(self) -> Any:
        """Return a mark of what the device has been given so far, without a wait."""
        event = self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._index))
        return event

    def seconds_between(self, first: Any, last: Any) -> float:
        """Return the device's seconds from one mark to another; waits for the last one."""
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000

    def _ask_card(self, ask: Callable[[Card], T]) -> T | None:
        if self._card is None:
            return None
        try:
            return ask(self._card)
        except NvmlError:
            return None

    def _count_retries(self) -> int | None:
        # Allocators other than torch's own do not count them.
        retries = self._cuda.memory_stats(self._index).get("num_alloc_retries")
        return None if retries is None else int(retries)

    def _mark_neighbours(self) -> Iterator[str]:
        neighbours = self._ask_card(lambda card: card.neighbours(os.getpid(), self.held_bytes()))
        used_bytes, is_counted = neighbours or (0, True)
        if used_bytes > NEGLIGIBLE_BYTES:
            yield f"{'' if is_counted else 'about '}{format_bytes(used_bytes)} of other processes on the card"


Meter = HostMeter | CudaMeter  # watches the memory of the process it runs in


def meter_for(device_kind: str) -> Meter:
    """Return the meter of a device of this kind, ``cpu`` or ``cuda``."""
    return CudaMeter() if device_kind == "cuda" else HostMeter()


def kind_in_use() -> str:
    """Return the kind of device on which a script trains: one on the CPU leaves a card alone, though it may see one."""
    import torch

    return "cuda" if torch.cuda.is_initialized() else "cpu"


def _index_in_use(cuda: ModuleType) -> int:
    """Return the current device, unless another one has more in its allocator, as after ``model.to("cuda:1")``."""
    current = cuda.current_device()
    return max(range(cuda.device_count()), key=lambda index: (cuda.memory_reserved(index), index == current))


def _mark_retries(retries: int | None) -> Iterator[str]:
    if retries:
        yield f"{retries} allocator {'retry' if retries == 1 else 'retries'}: fits but thrashes"
