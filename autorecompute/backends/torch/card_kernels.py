"""Kernels of a card on fake tensors that stand on the CPU, with what they keep: attention, dropout and optimizers.

A fake tensor runs no kernel, so an operator of CUDA has its results and its backward pass on the CPU too.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import pad

from autorecompute.backends.torch.attention import attention_by
from autorecompute.backends.torch.attention_kernels import AttentionCall, Kernel, kernel_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

_ATEN = torch.ops.aten
_FUSED = {
    Kernel.CUDNN: _ATEN._scaled_dot_product_cudnn_attention,
    Kernel.EFFICIENT: _ATEN._scaled_dot_product_efficient_attention,
}
HALF_BYTES = 2
_OPTIONS = ("attn_mask", "dropout_p", "is_causal")
"""What may stand behind query, key and value without its name."""


class CardKernels:
    """Computes attention, dropout and an optimizer's step as a card does, on fake tensors of the CPU.

    Functions of ``torch.nn.functional`` that a module has imported by name are not seen.

    Args:
        capability: The card's compute capability.

    Attributes:
        taken: How many calls of attention took each kernel.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        self.taken: collections.Counter[Kernel] = collections.Counter()
        self._capability = capability
        major, minor, *_ = torch.__version__.split(".")
        self._release = (int(major), int(minor))

    @contextlib.contextmanager
    def active(self, optimizers: Iterable[Optimizer] = ()) -> Iterator[None]:
        """Have calls in this thread take these kernels.

        Args:
            optimizers: They update all weights at once, as they do on a card where nothing else was asked for
                (``_default_to_fused_or_foreach`` in ``torch/optim/optimizer.py``).
        """
        plain = functional.dropout
        groups = [group for optimizer in optimizers for group in optimizer.param_groups if _is_open(group)]
        functional.dropout = _fused(plain)
        for group in groups:
            group["foreach"] = True
        try:
            with attention_by(self._attend):
                yield
        finally:
            functional.dropout = plain
            for group in groups:
                group["foreach"] = None

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        options = dict(zip(_OPTIONS, args, strict=False)) | kwargs
        query, key, value = (_in_autocast(tensor) for tensor in (query, key, value))
        call = _call_of((query, key, value), options)
        kernel = kernel_of(call, self._capability, self._release)
        self.taken[kernel] += 1
        mask = options.get("attn_mask")
        mask = None if mask is None else _as_numbers(_in_autocast(mask), query.dtype)
        scale = options.get("scale")
        with torch.autocast(query.device.type, enabled=False):
            if kernel is Kernel.FLASH:
                return _flash((query, key, value), call, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
            if kernel is Kernel.MATH:
                return _written_out((query, key, value), mask, call, scale)
            if kernel is Kernel.EFFICIENT:
                mask = _aligned(mask, query, key)
            given = (query, key, value, mask, torch.is_grad_enabled(), call.dropout, call.is_causal)
            return _first(_FUSED[kernel](*given, scale=scale))


def _is_open(group: Mapping[str, Any]) -> bool:
    """Tell whether it is PyTorch that decides how an optimizer updates the weights."""
    return (
        "foreach" in group and group["foreach"] is None and not group.get("fused") and not group.get("differentiable")
    )


def _fused(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a dropout whose mask has a byte for each number, as a card's has, and not as many as the number.

    ``is_fused_kernel_acceptable`` in ``aten/src/ATen/native/Dropout.cpp``.
    """

    @functools.wraps(plain)
    def dropout(values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: FBT001, FBT002 (PyTorch's own arguments)
        if training and not inplace and 0 < p < 1:
            return _first(torch.native_dropout(values, p, train=True))
        return plain(values, p, training, inplace)

    return dropout


def _call_of(tensors: tuple[Tensor, Tensor, Tensor], options: Mapping[str, Any]) -> AttentionCall:
    query, key, value = tensors
    mask = options.get("attn_mask")
    rows = tensors if mask is None else (*tensors, mask)
    return AttentionCall(
        dtype=str(query.dtype).removeprefix("torch."),
        query=tuple(query.shape),
        key=tuple(key.shape),
        value=tuple(value.shape),
        mask=None if mask is None else tuple(mask.shape),
        mask_learns=mask is not None and mask.requires_grad,
        has_plain_strides=all(tensor.stride(-1) == 1 for tensor in rows),
        dropout=options.get("dropout_p", 0.0),
        is_causal=options.get("is_causal", False),
        is_grouped=options.get("enable_gqa", False),
    )


def _in_autocast(tensor: Tensor) -> Tensor:
    """Return the tensor as autocast hands it to attention."""
    kind = tensor.device.type
    is_cast = torch.is_autocast_enabled(kind) and tensor.is_floating_point() and tensor.dtype != torch.float64
    return tensor.to(torch.get_autocast_dtype(kind)) if is_cast else tensor


def _as_numbers(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask of yes and no as what is added to the scores (``convert_boolean_attn_mask``)."""
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=dtype, device=mask.device))


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask whose rows begin at multiples of 8 numbers, for all heads (``preprocess_mask``)."""
    if mask is None:
        return None
    if mask.stride(-1) != 1 or any(stride % 8 for stride in mask.stride()[:-1]):
        mask = pad(mask, (0, 8 - mask.shape[-1] % 8))[..., : mask.shape[-1]]
    return mask.expand(*query.shape[:3], key.shape[2])


def _flash(tensors: tuple[Tensor, Tensor, Tensor], call: AttentionCall, scale: float) -> Tensor:
    """Flash attention of heads that are filled up to a multiple of 8 (``pad_last_dim``)."""
    size = call.query[-1]
    query, key, value = (pad(tensor, (0, -size % 8)) if size % 8 else tensor for tensor in tensors)
    attend = _ATEN._scaled_dot_product_flash_attention
    result = _first(attend(query, key, value, call.dropout, call.is_causal, scale=scale))
    return result[..., :size] if size % 8 else result


def _written_out(
    tensors: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, call: AttentionCall, scale: float | None
) -> Tensor:
    """Attention by products (``_scaled_dot_product_attention_math``), where a dropout's mask has a byte for each score.

    PyTorch's own function drops as the CPU does, where its tensors are. It has to be written out for another mask.
    """
    if not call.dropout:
        rest = {"is_causal": call.is_causal, "scale": scale, "enable_gqa": call.is_grouped}
        return _first(_ATEN._scaled_dot_product_attention_math(*tensors, mask, **rest))
    query, key, value = (tensor.float() if tensor.itemsize == HALF_BYTES else tensor for tensor in tensors)
    if call.is_causal:
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        mask = _as_numbers(allowed, query.dtype)
    if call.is_grouped:
        key, value = (tensor.repeat_interleave(call.query[1] // call.key[1], 1) for tensor in (key, value))
    factor = (abs(scale) if scale is not None else 1 / math.sqrt(query.shape[-1])) ** 0.5
    scores = torch.matmul(query * factor, key.transpose(-2, -1) * factor)
    shares = _ATEN._safe_softmax(scores if mask is None else scores + mask, -1)
    dropped = _first(torch.native_dropout(shares, call.dropout, train=True))
    return torch.matmul(dropped, value).to(tensors[0].dtype)


def _first(results: Sequence[Any]) -> Tensor:
    result: Tensor = results[0]
    return result
