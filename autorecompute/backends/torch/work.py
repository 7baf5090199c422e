"""How much a step computes, by a rule of thumb: what each operator multiplies, and what it reads and writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch.utils.flop_counter import flop_registry

from autorecompute.backends.torch.storages import tensors_in

if TYPE_CHECKING:
    from collections.abc import Mapping

OPERATIONS_PER_BYTE = {"cpu": 10.0, "cuda": 100.0}
"""Multiplications and additions that a device does in the time in which it reads or writes a byte."""


class Work:
    """Tells the work of operators, in bytes that could have been read or written meanwhile.

    It orders configs before a step of any has run. Trials correct it.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, device: str = "cpu") -> None:
        self._operations_per_byte = OPERATIONS_PER_BYTE.get(device, OPERATIONS_PER_BYTE["cpu"])

    def of(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> float:
        """The work of one operator.

        Args:
            function: The operator.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
        """
        if getattr(function, "is_view", False):
            return 0.0
        moved = sum(_bytes(tensor) for value in (args, kwargs, result) for tensor in tensors_in(value))
        count = flop_registry.get(getattr(function, "overloadpacket", None))
        operations = float(count(*args, **kwargs, out_val=result)) if count is not None else 0.0
        return max(float(moved), operations / self._operations_per_byte)


def _bytes(tensor: Any) -> int:
    size: int = math.prod(tensor.shape) * tensor.element_size()
    return size
