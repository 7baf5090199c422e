"""A stand-in for ``torch.cuda`` and its caching allocator."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fake_gpu.fake_card import FakeCard


class FakeCuda:
    """A process that has taken a card into use, with an allocator that caches whole blocks and never splits one.

    Args:
        card: The card.
        pid: Process id under which NVML lists it; ``None`` where it does not, as in a container.
        context_bytes: What its CUDA context takes.
        index: Which of the process's devices the card is. All before it are empty. The first one is the current one.
    """

    class OutOfMemoryError(RuntimeError):
        """As torch's."""

    def __init__(
        self, card: FakeCard, *, pid: int | None = os.getpid(), context_bytes: int = 400 * MIB, index: int = 0
    ) -> None:
        self._card, self._pid, self._index = card, pid, index
        self._live: list[int] = []
        self._cached: list[int] = []
        self._peak_reserved = self._peak_allocated = self._retries = 0
        self._fraction = 1.0
        self._occupy(context_bytes)

    @contextmanager
    def installed(self) -> Iterator[FakeCuda]:
        """Makes ``import torch`` give a module with this as its ``cuda``, and nothing else, while the context lasts."""
        with mock.patch.dict(sys.modules, {"torch": SimpleNamespace(cuda=self)}):
            yield self

    def allocate(self, number_of_bytes: int) -> int:
        """What creating a tensor does; the block it got, which is told by its size and may be larger than asked for.

        Raises:
            OutOfMemoryError: neither the card nor the fraction has room for it.
        """
        fitting = [block for block in self._cached if block >= number_of_bytes]
        block = min(fitting, default=0) or self._reserve(number_of_bytes)
        if block in self._cached:
            self._cached.remove(block)
        self._live.append(block)
        self._note_peaks()
        return block

    def free(self, block: int) -> None:
        """What the end of a tensor does: its block is kept for the next one."""
        self._live.remove(block)
        self._cached.append(block)

    def _reserve(self, number_of_bytes: int) -> int:
        if not self._has_room(number_of_bytes) and self._cached:
            self._retries += 1
            self.empty_cache()
        if not self._has_room(number_of_bytes):
            raise self.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {format_bytes(number_of_bytes)}.")
        self._occupy(number_of_bytes)
        return number_of_bytes

    def _has_room(self, number_of_bytes: int) -> bool:
        allowed = self._fraction * self._total_bytes - self.memory_reserved()
        return number_of_bytes <= min(allowed, self._card.free_bytes)

    def _occupy(self, number_of_bytes: int) -> None:
        if self._pid is None:
            self._card.unlisted_bytes += number_of_bytes
        else:
            self._card.processes[self._pid] = (self._card.processes.get(self._pid) or 0) + number_of_bytes

    @property
    def _total_bytes(self) -> int:
        # The CUDA runtime leaves out what the driver keeps.
        return self._card.total_bytes - self._card.driver_bytes

    def _note_peaks(self) -> None:
        self._peak_reserved = max(self._peak_reserved, self.memory_reserved())
        self._peak_allocated = max(self._peak_allocated, self.memory_allocated())

    def empty_cache(self) -> None:
        """Gives the blocks that no tensor is in back to the driver."""
        self._occupy(-sum(self._cached))
        self._cached.clear()

    def memory_reserved(self, device: int | None = None) -> int:
        """Bytes that the allocator has from the driver."""
        return 0 if device not in {None, self._index} else sum(self._live) + sum(self._cached)

    def memory_allocated(self) -> int:
        """Bytes in tensors."""
        return sum(self._live)

    def max_memory_reserved(self, device: int) -> int:
        """The most since the last reset."""
        return self._peak_reserved if device == self._index else 0

    def max_memory_allocated(self, device: int) -> int:
        """The most since the last reset."""
        return self._peak_allocated if device == self._index else 0

    def reset_peak_memory_stats(self, device: int) -> None:
        """Sets the peaks to what is held now; retries go on counting, as torch's do."""
        self._require(device)
        self._peak_reserved, self._peak_allocated = self.memory_reserved(), self.memory_allocated()

    def memory_stats(self, device: int) -> dict[str, int]:
        """Of torch's many figures, the one that is asked for."""
        self._require(device)
        return {"num_alloc_retries": self._retries}

    def mem_get_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes of the card, by the CUDA runtime."""
        self._require(device)
        return self._card.free_bytes, self._total_bytes

    def set_per_process_memory_fraction(self, fraction: float, device: int) -> None:
        """From now on the allocator reserves no more than this share of the card.

        Raises:
            ValueError: the share is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._require(device)
        self._fraction = fraction

    def is_initialized(self) -> bool:
        """The process has taken the card into use."""
        return True

    def current_device(self) -> int:
        """The first one, as in a process that has chosen none."""
        return 0

    def device_count(self) -> int:
        """The card and the empty ones before it."""
        return self._index + 1

    def get_device_properties(self, device: Any) -> SimpleNamespace:
        """Its name, memory and UUID, which torch gives without NVML's prefix."""
        self._require(device)
        uuid = self._card.uuid.removeprefix("GPU-").removeprefix("MIG-")
        return SimpleNamespace(name=self._card.name, total_memory=self._total_bytes, uuid=uuid)

    def synchronize(self, device: int) -> None:
        """Nothing is ever under way."""
        self._require(device)

    def _require(self, device: int) -> None:
        assert device == self._index, "the process has nothing on any other card"
