import os
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from autorecompute.units import MIB, format_bytes

OWN_PID = os.getpid()


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

    def __init__(self, card, *, pid=OWN_PID, context_bytes=400 * MIB, index=0):
        self._card, self._pid, self._index = card, pid, index
        self._live, self._cached = [], []
        self._peak_reserved = self._peak_allocated = self._retries = 0
        self._fraction = 1.0
        self._occupy(context_bytes)

    @contextmanager
    def installed(self):
        """Makes ``import torch`` give a module with this as its ``cuda``, and nothing else, while the context lasts."""
        with mock.patch.dict(sys.modules, {"torch": SimpleNamespace(cuda=self)}):
            yield self

    def allocate(self, number_of_bytes):
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

    def free(self, block):
        self._live.remove(block)
        self._cached.append(block)

    def _reserve(self, number_of_bytes):
        if not self._has_room(number_of_bytes) and self._cached:
            self._retries += 1
            self.empty_cache()
        if not self._has_room(number_of_bytes):
            raise self.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {format_bytes(number_of_bytes)}.")
        self._occupy(number_of_bytes)
        return number_of_bytes

    def _has_room(self, number_of_bytes):
        allowed = self._fraction * self._total_bytes - self.memory_reserved()
        return number_of_bytes <= min(allowed, self._card.free_bytes)

    def _occupy(self, number_of_bytes):
        if self._pid is None:
            self._card.unlisted_bytes += number_of_bytes
        else:
            self._card.processes[self._pid] = (self._card.processes.get(self._pid) or 0) + number_of_bytes

    @property
    def _total_bytes(self):
        # The CUDA runtime leaves out what the driver keeps.
        return self._card.total_bytes - self._card.driver_bytes

    def _note_peaks(self):
        self._peak_reserved = max(self._peak_reserved, self.memory_reserved())
        self._peak_allocated = max(self._peak_allocated, self.memory_allocated())

    def empty_cache(self):
        self._occupy(-sum(self._cached))
        self._cached.clear()

    def memory_reserved(self, device=None):
        return 0 if device not in {None, self._index} else sum(self._live) + sum(self._cached)

    def memory_allocated(self):
        return sum(self._live)

    def max_memory_reserved(self, device):
        return self._peak_reserved if device == self._index else 0

    def max_memory_allocated(self, device):
        return self._peak_allocated if device == self._index else 0

    def reset_peak_memory_stats(self, device):
        self._require(device)
        self._peak_reserved, self._peak_allocated = self.memory_reserved(), self.memory_allocated()

    def memory_stats(self, device):
        self._require(device)
        return {"num_alloc_retries": self._retries}

    def mem_get_info(self, device):
        self._require(device)
        return self._card.free_bytes, self._total_bytes

    def set_per_process_memory_fraction(self, fraction, device):
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        self._require(device)
        self._fraction = fraction

    def is_initialized(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return self._index + 1

    def get_device_properties(self, device):
        self._require(device)
        uuid = self._card.uuid.removeprefix("GPU-").removeprefix("MIG-")
        return SimpleNamespace(name=self._card.name, total_memory=self._total_bytes, uuid=uuid)

    def synchronize(self, device):
        self._require(device)

    def current_stream(self, device):
        self._require(device)

    class Event:
        def __init__(self, *, enable_timing):
            assert enable_timing, "else it has no time"

        def record(self, _stream):
            self.seconds = time.perf_counter()

        def synchronize(self):
            pass

        def elapsed_time(self, later):
            return 1000 * (later.seconds - self.seconds)

    def _require(self, device):
        assert device == self._index, "the process has nothing on any other card"
