"""How fast a machine computes: that of a card by its data sheet, and that of this machine by a short measurement."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from autorecompute.backends.torch.cards import TF32
from autorecompute.memory import Machine
from autorecompute.units import GIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 5
LONG_ENOUGH_SECONDS = 0.005
"""A product that takes this long is large enough to tell the speed, and small enough where a type is slow."""

SMALLEST, LARGEST = 256, 8192
"""Rows of the matrices that are multiplied."""

COPIED = {"cpu": 64 * MIB, "cuda": GIB}
"""Bytes that are read and written: more than caches hold."""


class Speeds(Protocol):
    """What a roofline is made of."""

    @property
    def bytes_per_second(self) -> float:
        """Return what memory reads and writes."""

    def operations_per_second(self, kind: str) -> float:
        """Return the speed of matrix products of a type of numbers."""


class MeasuredSpeeds:
    """Those of this machine, each measured when it is first asked for: some milliseconds of each.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._operations: dict[str, float] = {}
        self.bytes_per_second = self._copying()

    def operations_per_second(self, kind: str) -> float:
        """Return the speed of matrix products of a type of numbers."""
        kind = "float32" if kind == TF32 else kind  # what is measured is what the script has switched on
        if kind not in self._operations:
            self._operations[kind] = self._multiplying(getattr(torch, kind))
        return self._operations[kind]

    @property
    def machine(self) -> Machine:
        """Return all that was measured."""
        return Machine(
            name="this machine",
            source=f"measured on {self._device}: the best of {REPEATS} matrix products, and of {REPEATS} copies",
            is_measured=True,
            operations_per_second=dict(self._operations),
            bytes_per_second=self.bytes_per_second,
        )

    def _multiplying(self, dtype: torch.dtype) -> float:
        rows = SMALLEST
        while True:
            # Fake tensors are made of everything around, and a fake takes no time.
            with _disable_current_modes(), torch.no_grad():
                one = torch.ones(rows, rows, dtype=dtype, device=self._device)
                seconds = self._best(functools.partial(torch.mm, one, one.clone(), out=torch.empty_like(one)))
            if seconds >= LONG_ENOUGH_SECONDS or rows == LARGEST:
                return 2 * rows**3 / seconds
            rows *= 2

    def _copying(self) -> float:
        size = COPIED.get(self._device, COPIED["cpu"])
        with _disable_current_modes(), torch.no_grad():
            source = torch.ones(size, dtype=torch.uint8, device=self._device)
            target = torch.zeros_like(source)
            return 2 * size / self._best(functools.partial(target.copy_, source))

    def _best(self, call: Callable[[], object]) -> float:
        """Return the shortest time of some calls.

        Others on the machine make them longer, and nothing makes them shorter.
        """
        self._run(call)
        return min(self._run(call) for _ in range(REPEATS))

    def _run(self, call: Callable[[], object]) -> float:
        self._settle()
        begin = time.perf_counter()
        call()
        self._settle()
        return max(time.perf_counter() - begin, 1e-9)

    def _settle(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
