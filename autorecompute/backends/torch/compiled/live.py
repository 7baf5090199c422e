"""The bytes that live tensors take in a step of compiled code, as PyTorch's allocator on a CPU counts them."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile

from autorecompute.backends.torch.storages import Storages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

MEMORY = "[memory]"
"""The name of the profiler's events that say that memory came or went."""


class LeastHeld:
    """What a process held between two steps before the compiler had been at work often.

    Each compilation leaves some megabytes behind, and a process that trains compiles one config alone. The model, its
    optimizer and its batch are held whatever is recomputed.
    """

    def __init__(self) -> None:
        self._least: int | None = None

    def of(self, held_bytes: int) -> int:
        """Return what is to be taken for held where so much is."""
        self._least = held_bytes if self._least is None else min(self._least, held_bytes)
        return self._least


class AllocatedLive:
    """Counts what is allocated and freed between two calls that a script lies between.

    Compiled code makes its tensors past the dispatcher, where those of eager code are seen. The profiler sees every
    allocation. It does not know the size of what was there before it: tensors that are known at the start are followed.

    Args:
        known: Tells the tensors that are alive when a step begins.
        held: What this process held in earlier measurements.
    """

    def __init__(self, known: Callable[[], Iterable[Tensor]], held: LeastHeld) -> None:
        self._known, self._held = known, held
        self._profile: Any = None
        self._sizes: dict[int, int] = {}
        self._freed: list[tuple[int, int]] = []

    def start(self) -> None:
        """Begin a step."""
        self._storages = Storages(self._gone)
        self._sizes, self._freed = {}, []
        for tensor in self._known():
            number, size = self._storages.see(tensor)
            if size:
                self._sizes[number] = size
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=False)
        self._profile.__enter__()

    def stop(self) -> int:
        """Return the most bytes alive beyond those that were at the start."""
        profiled, self._profile = self._profile, None
        profiled.__exit__(None, None, None)
        self._sizes.clear()
        events = profiled.profiler.kineto_results.events()
        changes: list[tuple[int, int]] = [
            (event.start_ns(), event.nbytes()) for event in events if event.name() == MEMORY
        ]
        in_order = sorted((*changes, *self._freed), key=lambda change: change[0])
        return max(itertools.accumulate((change for _, change in in_order), initial=0))

    def held_bytes(self, measured_bytes: int) -> int:
        """Return what a process that compiles this config alone would hold between two steps."""
        return self._held.of(measured_bytes)

    def _gone(self, number: int) -> None:
        size = self._sizes.pop(number, 0)
        if size and self._profile is not None:
            self._freed.append((time.time_ns(), -size))
