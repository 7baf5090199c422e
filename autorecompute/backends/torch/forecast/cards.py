"""Cards by their published figures, and what the attention kernels of each save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autorecompute.memory import Machine

FLOAT, TF32, BFLOAT16, HALF = "float32", "tf32", "bfloat16", "float16"

TERA, GIGA = 1e12, 1e9


def _speeds(single: float, tensor: float, half: float) -> dict[str, float]:
    """Return the speeds of a card whose tensor cores take TF32 and both types of 16 bits."""
    return {FLOAT: single, TF32: tensor, BFLOAT16: half, HALF: half}


_FIGURES = {
    "V100": ((7, 0), 32, 900, {FLOAT: 15.7, HALF: 125}, "NVIDIA V100 data sheet, SXM2 32 GB"),
    "T4": ((7, 5), 16, 320, {FLOAT: 8.1, HALF: 65}, "NVIDIA T4 data sheet"),
    "A100": ((8, 0), 80, 2039, _speeds(19.5, 156, 312), "NVIDIA A100 data sheet, SXM 80 GB"),
    "A10": ((8, 6), 24, 600, _speeds(31.2, 62.5, 125), "NVIDIA A10 data sheet"),
    "RTX 3090": ((8, 6), 24, 936, _speeds(35.6, 35.6, 71), "NVIDIA Ampere GA102 white paper"),
    "L4": ((8, 9), 24, 300, _speeds(30.3, 60, 121), "NVIDIA L4 data sheet"),
    "L40S": ((8, 9), 48, 864, _speeds(91.6, 183, 362), "NVIDIA L40S data sheet"),
    "RTX 4090": ((8, 9), 24, 1008, _speeds(82.6, 82.6, 165.2), "NVIDIA Ada GPU architecture white paper"),
    "H100": ((9, 0), 80, 3350, _speeds(67, 494.5, 989.5), "NVIDIA H100 data sheet, SXM"),
    "H200": ((9, 0), 141, 4800, _speeds(67, 494.5, 989.5), "NVIDIA H200 data sheet, SXM"),
    "B200": ((10, 0), 180, 7700, _speeds(75, 1100, 2250), "NVIDIA Blackwell data sheet, HGX B200"),
    "RTX 5090": ((12, 0), 32, 1792, _speeds(104.8, 104.8, 209.5), "NVIDIA RTX Blackwell white paper"),
}
"""By the name that ``--card`` takes: the compute capability (NVIDIA, "CUDA GPU Compute Capability"), the memory and the
bandwidth in units of 10^9 bytes, 10^12 floating point operations a second by type of numbers, and the source. A type
that is not there has the speed of float32."""

CAPABILITIES = {name: capability for name, (capability, *_) in _FIGURES.items()}

CARDS = {
    name: Machine(
        name=name,
        source=source,
        is_measured=False,
        operations_per_second={kind: TERA * speed for kind, speed in teraflops.items()},
        bytes_per_second=GIGA * bandwidth,
        memory_bytes=round(memory * GIGA),
    )
    for name, (_, memory, bandwidth, teraflops, source) in _FIGURES.items()
}
"""Each card as a machine; its memory in full, of which a CUDA context takes a part."""


CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
"""Kernels of attention."""


@dataclass(frozen=True, kw_only=True)
class AttentionCall:
    """Properties of a call of attention on which the choice of its kernel depends.

    Attributes:
        dtype: The type of query, key and value, as ``bfloat16``.
        query: The shape of the query, ``[batch, heads, length, head size]``; so are those of key, value and mask.
        mask_learns: True if gradients go to the mask.
        has_plain_strides: True if the elements of each row of all of them follow each other.
        is_grouped: True if several heads of the query may share one of the key.
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


def kernel_of(call: AttentionCall, capability: tuple[int, int], release: tuple[int, int] = CHOOSIER) -> str:
    """Return the kernel that a training step takes on a card (``select_sdp_backend``)."""
    if not _is_fusable(call):
        return MATH
    # If it is later than 9.15.0 (``check_prefer_cudnn_attention``).
    prefers_cudnn = capability in {(9, 0), (10, 0), (10, 3)}
    if prefers_cudnn and _fits_cudnn(call, capability, release):
        return CUDNN
    if _fits_flash(call, capability):
        return FLASH
    return EFFICIENT if _fits_efficient(call, capability) else MATH


def _is_fusable(call: AttentionCall) -> bool:
    """Tell whether any kernel takes such shapes (``check_tensor_shapes``, ``check_batch_size_and_num_heads_dense``)."""
    shapes = (call.query, call.key, call.value)
    if any(len(shape) != 4 for shape in shapes) or not call.has_plain_strides:  # noqa: PLR2004 (batch to head size)
        return False
    if len({shape[0] for shape in shapes}) > 1 or 0 in {call.query[2], call.key[2]}:
        return False
    # Heads of the query may share those of the key (``check_grouped_query_attention``).
    is_shared = call.is_grouped and call.key[1] == call.value[1]
    return _has_one_head_each(call) or (is_shared and call.query[1] % call.key[1] == 0)


def _has_one_head_each(call: AttentionCall) -> bool:
    return call.query[1] == call.key[1] == call.value[1]


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
    # A head has to be a multiple of so many numbers (``minimum_gemm_alignment``).
    is_half = call.dtype in {HALF, BFLOAT16}
    has_tensor_cores = capability >= (8, 0) or (capability >= (7, 0) and is_half)
    alignment = (8 if is_half else 4) if has_tensor_cores else 1
    return (
        (5, 0) <= capability <= (12, 1)
        and call.dtype in types
        and _has_one_head_each(call)
        and call.query[3] == call.key[3]
        and all(size and size % alignment == 0 for size in (call.query[3], call.value[3]))
    )
