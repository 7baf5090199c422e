"""Which kernel ``scaled_dot_product_attention`` takes on a CUDA card.

The rules are those of ``cuda/sdp_utils.cpp`` and ``sdp_utils_cpp.h`` in ``aten/src/ATen/native/transformers`` of
PyTorch 2.13, for tensors that are not nested and for settings of ``torch.backends.cuda`` that nobody changed. Each
function names the one that it follows there. What cuDNN takes depends on its version: here it is later than 9.15.0,
with heads up to 128. Before PyTorch 2.12, cuDNN took any dropout, and heads up to 256 on compute capability 9.0, as
seen on an H100 with PyTorch 2.11.

What a kernel keeps for the backward pass beside query, key and value, for a batch ``B``, ``H`` heads of ``E`` and a
sequence of ``L``:

* flash: the result, ``B·H·L`` numbers of float32, and 24 bytes of the random numbers' state;
* cuDNN: the same with 16 bytes, and a mask as numbers;
* memory efficient: the same as cuDNN with ``L`` rounded up to 32;
* math: the scores after the softmax, ``B·H·L·S``, and scaled copies of query, key and value, in float32 where they have
  16 bits; with dropout, the scores once more and a byte for each.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from autorecompute.backends.torch.cards import BFLOAT16, FLOAT, HALF


class Kernel(enum.StrEnum):
    """How attention is computed."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """What the choice depends on.

    Attributes:
        dtype: The type of query, key and value: ``bfloat16``.
        query: The shape of the query, ``[batch, heads, length, head size]``.
        key: That of the key.
        value: That of the value.
        mask: That of the mask; ``None`` without one.
        mask_learns: Whether gradients go to the mask.
        has_plain_strides: Whether the elements of each row of all of them follow each other.
        dropout: The share that is dropped.
        is_causal: Whether each position sees those before it alone.
        is_grouped: Whether several heads of the query may share one of the key.
    """

    dtype: str
    query: Sequence[int]
    key: Sequence[int]
    value: Sequence[int]
    mask: Sequence[int] | None = None
    mask_learns: bool = False
    has_plain_strides: bool = True
    dropout: float = 0.0
    is_causal: bool = False
    is_grouped: bool = False


CHOOSIER = (2, 12)
"""The first PyTorch whose cuDNN drops in sixteenths alone."""


def kernel_of(call: AttentionCall, capability: tuple[int, int], release: tuple[int, int] = CHOOSIER) -> Kernel:
    """Return the kernel that a training step takes on a card (``select_sdp_backend``).

    Args:
        call: What is computed.
        capability: The card's compute capability.
        release: Major and minor version of PyTorch.
    """
    if not _is_fusable(call):
        return Kernel.MATH
    if _prefers_cudnn(capability) and _fits_cudnn(call, capability, release):
        return Kernel.CUDNN
    if _fits_flash(call, capability):
        return Kernel.FLASH
    return Kernel.EFFICIENT if _fits_efficient(call, capability) else Kernel.MATH


def _is_fusable(call: AttentionCall) -> bool:
    """Tell whether any kernel takes such shapes (``check_tensor_shapes``, ``check_batch_size_and_num_heads_dense``)."""
    shapes = (call.query, call.key, call.value)
    if any(len(shape) != 4 for shape in shapes) or not call.has_plain_strides:  # noqa: PLR2004 (batch to head size)
        return False
    is_one_batch = len({shape[0] for shape in shapes}) == 1
    return is_one_batch and 0 not in {call.query[2], call.key[2]} and (_has_one_head_each(call) or _is_grouped(call))


def _has_one_head_each(call: AttentionCall) -> bool:
    return call.query[1] == call.key[1] == call.value[1]


def _is_grouped(call: AttentionCall) -> bool:
    """Tell whether heads of the query share those of the key (``check_grouped_query_attention``)."""
    return call.is_grouped and call.key[1] == call.value[1] and call.query[1] % call.key[1] == 0


def _prefers_cudnn(capability: tuple[int, int]) -> bool:
    """Tell whether cuDNN comes first, if it is later than 9.15.0 (``check_prefer_cudnn_attention``)."""
    return capability in {(9, 0), (10, 0), (10, 3)}


def _fits_cudnn(call: AttentionCall, capability: tuple[int, int], release: tuple[int, int]) -> bool:
    """``can_use_cudnn_attention``."""
    heads = (call.query[3], call.value[3])
    largest = 256 if release < CHOOSIER and capability == (9, 0) else 128
    return (
        call.dtype in {HALF, BFLOAT16}
        and _has_fitting_mask(call)
        and (release < CHOOSIER or (call.dropout * 16).is_integer())
        and all(size <= largest and size % 8 == 0 for size in heads)
        and call.key[2] != 1
        and (not call.dropout or call.query[2] != 1)
    )


def _has_fitting_mask(call: AttentionCall) -> bool:
    """Tell whether a mask has the scores' shape, or 1 in its place, and learns nothing (``check_attn_mask_shape``)."""
    if call.mask is None:
        return True
    scores = (*call.query[:2], call.query[2], call.key[2])
    fits = all(size in {1, full} for size, full in zip(reversed(call.mask), reversed(scores), strict=False))
    return fits and len(call.mask) in {2, 4} and not call.mask_learns


def _fits_flash(call: AttentionCall, capability: tuple[int, int]) -> bool:
    """``can_use_flash_attention``."""
    head = call.query[3]
    return (
        (8, 0) <= capability <= (12, 1)
        and call.dtype in {HALF, BFLOAT16}
        and call.mask is None
        and head == call.key[3] == call.value[3] <= 256  # noqa: PLR2004 (the limit of flash attention)
        and not (call.is_causal and call.query[2] != call.key[2])
        and _has_flash_backward(head, call.dropout, capability)
    )


def _has_flash_backward(head: int, dropout: float, capability: tuple[int, int]) -> bool:
    """Cards with less shared memory have no backward pass for large heads.

    ``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120``.
    """
    is_small = (8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)
    return not is_small or head <= 192 or (not dropout and head > 224)  # noqa: PLR2004 (the limits of the kernels)


def _fits_efficient(call: AttentionCall, capability: tuple[int, int]) -> bool:
    """``can_use_mem_efficient_attention``."""
    types = {HALF, FLOAT, BFLOAT16} if capability >= (8, 0) else {HALF, FLOAT}
    alignment = _alignment(call.dtype, capability)
    return (
        (5, 0) <= capability <= (12, 1)
        and call.dtype in types
        and _has_one_head_each(call)
        and call.query[3] == call.key[3]
        and all(size and size % alignment == 0 for size in (call.query[3], call.value[3]))
    )


def _alignment(dtype: str, capability: tuple[int, int]) -> int:
    """Return the numbers that a head has to be a multiple of (``minimum_gemm_alignment``)."""
    is_half = dtype in {HALF, BFLOAT16}
    has_tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and is_half)
    least = 4 if capability >= (8, 0) else 1
    return max(least, 8 if is_half else 4) if has_tensor_cores else least
