"""How much a step computes: what each operator multiplies, and what it reads and writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.flop_counter import flop_registry

from autorecompute.backends.torch.amounts import NOTHING, Amount
from autorecompute.backends.torch.cards import FLOAT, TF32
from autorecompute.backends.torch.storages import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from autorecompute.backends.torch.speeds import Speeds

OPERATIONS_PER_BYTE = {"cpu": 10.0, "cuda": 100.0}
"""Multiplications and additions that a device does in the time in which it reads or writes a byte."""

_ATEN = torch.ops.aten
_CONVOLUTIONS = {_ATEN.convolution, _ATEN._convolution, _ATEN.convolution_backward}
_LOOKUPS = {_ATEN.embedding, _ATEN.index_select, _ATEN.gather, _ATEN.index}
"""They read as much of their table as they give."""

_IDLE = {_ATEN.empty, _ATEN.empty_like, _ATEN.empty_strided, _ATEN.new_empty, _ATEN.new_empty_strided}
"""They reserve memory and neither read nor write it."""


class Work:
    """Tells the work of operators.

    Where no speeds are known it orders configs before a step of any has run, by a rule of thumb. Trials correct it.

    Args:
        device: ``cpu`` or ``cuda``.
        speeds: Those of the machine that a roofline is asked for.
    """

    def __init__(self, device: str = "cpu", speeds: Speeds | None = None) -> None:
        self._operations_per_byte = OPERATIONS_PER_BYTE.get(device, OPERATIONS_PER_BYTE["cpu"])
        self._speeds = speeds

    def of(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> Amount:
        """Return the work of one operator.

        Args:
            function: The operator.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            result: What it gave.
        """
        packet = getattr(function, "overloadpacket", None)
        if getattr(function, "is_view", False) or packet in _IDLE:
            return NOTHING
        given, written = [*tensors_in(args), *tensors_in(kwargs)], _written(args, result)
        read = written if packet in _LOOKUPS else given
        moved = float(sum(_bytes(tensor) for tensor in (*read, *written)))
        count = _OWN_COUNTS.get(packet) or flop_registry.get(packet)
        operations = float(count(*args, **kwargs, out_val=result)) if count is not None else 0.0
        return Amount(operations=operations, moved_bytes=moved, cost=self._cost(packet, given, operations, moved))

    def _cost(self, packet: Any, given: list[Tensor], operations: float, moved: float) -> float:
        if self._speeds is None:
            return max(moved, operations / self._operations_per_byte)
        seconds = moved / self._speeds.bytes_per_second
        if not operations:
            return seconds
        return max(seconds, operations / self._speeds.operations_per_second(_kind(packet, given[0])))


def _written(args: tuple[Any, ...], result: Any) -> list[Tensor]:
    """Return what an operator writes: its results, or where it gives none, the lists that it changes in place."""
    return list(tensors_in(args[0] if result is None and args else result))


def _kind(packet: Any, tensor: Tensor) -> str:
    """Return the type of numbers that an operator multiplies."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return TF32 if kind == FLOAT and _takes_tf32(packet) else kind


def _takes_tf32(packet: Any) -> bool:
    """Tell whether the script lets a card's tensor cores round float32 for this operator."""
    if packet in _CONVOLUTIONS:
        return bool(torch.backends.cudnn.allow_tf32)
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):  # since torch 2.9, which does not tell the older setting in every case
        return bool(matmul.fp32_precision == "tf32")
    return bool(matmul.allow_tf32)


def _bytes(tensor: Any) -> int:
    size: int = math.prod(tensor.shape) * tensor.element_size()
    return size


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: Any, **_kwargs: Any) -> int:
    """Return a product for the scores, and one for the result.

    A mask spares nothing, as in ``torch.utils.flop_counter``.
    """
    return 2 * _scores(query, key) * int(query.shape[-1] + value.shape[-1])


def _attention_backward(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **_kwargs: Any) -> int:
    """Return the scores once more, and products for the gradients of query, key, scores and value."""
    return 2 * _scores(query, key) * int(3 * query.shape[-1] + 2 * value.shape[-1])


def _scores(query: Tensor, key: Tensor) -> int:
    return int(math.prod(query.shape[:-1]) * key.shape[-2])


_OWN_COUNTS: Mapping[Any, Callable[..., int]] = {
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Those that torch's counter leaves out: attention of a CPU."""
