"""Cards by their published figures, and what the attention kernels of each save."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from autorecompute.errors import UsageError
from autorecompute.memory import Machine
from autorecompute.units import GIB, parse_bytes

FLOAT, TF32, BFLOAT16, HALF = "float32", "tf32", "bfloat16", "float16"

TERA, GIGA = 1e12, 1e9


def _speeds(single: float, tensor: float, half: float) -> dict[str, float]:
    """Return the speeds of a card whose tensor cores take TF32 and both types of 16 bits."""
    return {FLOAT: single, TF32: tensor, BFLOAT16: half, HALF: half}


_TURING = "NVIDIA Turing GPU architecture white paper"
_GA102, _GA104, _GA106 = (f"NVIDIA Ampere {chip} white paper" for chip in ("GA102", "GA104", "GA106"))
_ADA, _BLACKWELL = "NVIDIA Ada GPU architecture white paper", "NVIDIA RTX Blackwell white paper"

_FIGURES = {
    "V100": ((7, 0), 31.74, 900, {FLOAT: 15.7, HALF: 125}, "NVIDIA V100 data sheet, SXM2 32 GB"),
    "T4": ((7, 5), 14.58, 320, {FLOAT: 8.1, HALF: 65}, "NVIDIA T4 data sheet"),
    "RTX 2080 Ti": ((7, 5), 10.76, 616, {FLOAT: 13.4, HALF: 53.8}, _TURING),
    "A100": ((8, 0), 79.15, 2039, _speeds(19.5, 156, 312), "NVIDIA A100 data sheet, SXM 80 GB"),
    "A100 40GB": ((8, 0), 39.39, 1555, _speeds(19.5, 156, 312), "NVIDIA A100 data sheet, SXM 40 GB"),
    "A10": ((8, 6), 22.0, 600, _speeds(31.2, 62.5, 125), "NVIDIA A10 data sheet"),
    "RTX A4000": ((8, 6), 15.6, 448, _speeds(19.2, 38.3, 76.7), "NVIDIA RTX A4000 data sheet"),
    "RTX A5000": ((8, 6), 23.5, 768, _speeds(27.8, 55.6, 111.1), "NVIDIA RTX A5000 data sheet"),
    "RTX A6000": ((8, 6), 47.4, 768, _speeds(38.7, 77.4, 154.8), "NVIDIA RTX A6000 data sheet"),
    "RTX 3060": ((8, 6), 11.75, 360, _speeds(12.7, 12.7, 25.6), _GA106),
    "RTX 3070": ((8, 6), 7.76, 448, _speeds(20.3, 20.3, 40.6), _GA104),
    "RTX 3080": ((8, 6), 9.78, 760, _speeds(29.8, 29.8, 59.5), _GA102),
    "RTX 3090": ((8, 6), 23.5, 936, _speeds(35.6, 35.6, 71), _GA102),
    "L4": ((8, 9), 22.0, 300, _speeds(30.3, 60, 121), "NVIDIA L4 data sheet"),
    "L40S": ((8, 9), 44.42, 864, _speeds(91.6, 183, 362), "NVIDIA L40S data sheet"),
    "RTX 4000 Ada": ((8, 9), 19.5, 360, _speeds(26.7, 53.4, 106.9), "NVIDIA RTX 4000 Ada data sheet"),
    "RTX 6000 Ada": ((8, 9), 47.4, 960, _speeds(91.1, 182.1, 364.2), "NVIDIA RTX 6000 Ada data sheet"),
    "RTX 4060": ((8, 9), 7.75, 272, _speeds(15.1, 15.1, 30.2), _ADA),
    "RTX 4060 Ti": ((8, 9), 15.6, 288, _speeds(22.1, 22.1, 44.1), f"{_ADA}, 16 GB"),
    "RTX 4070": ((8, 9), 11.6, 504, _speeds(29.1, 29.1, 58.3), _ADA),
    "RTX 4070 Ti Super": ((8, 9), 15.6, 672, _speeds(44.1, 44.1, 88.2), "NVIDIA RTX 4070 Ti Super page"),
    "RTX 4080": ((8, 9), 15.6, 717, _speeds(48.7, 48.7, 97.5), _ADA),
    "RTX 4090": ((8, 9), 23.52, 1008, _speeds(82.6, 82.6, 165.2), _ADA),
    "H100": ((9, 0), 79.18, 3350, _speeds(67, 494.5, 989.5), "NVIDIA H100 data sheet, SXM"),
    "H200": ((9, 0), 139.7, 4800, _speeds(67, 494.5, 989.5), "NVIDIA H200 data sheet, SXM"),
    "B200": ((10, 0), 178.3, 7700, _speeds(75, 1100, 2250), "NVIDIA Blackwell data sheet, HGX B200"),
    "RTX 5060 Ti": ((12, 0), 15.5, 448, _speeds(23.7, 23.7, 47.4), f"{_BLACKWELL}, 16 GB"),
    "RTX 5070": ((12, 0), 11.5, 672, _speeds(30.9, 30.9, 61.7), _BLACKWELL),
    "RTX 5070 Ti": ((12, 0), 15.5, 896, _speeds(43.9, 43.9, 87.9), _BLACKWELL),
    "RTX 5080": ((12, 0), 15.5, 960, _speeds(56.3, 56.3, 112.6), _BLACKWELL),
    "RTX 5090": ((12, 0), 31.36, 1792, _speeds(104.8, 104.8, 209.5), _BLACKWELL),
    "RTX PRO 6000": ((12, 0), 94.9, 1792, _speeds(125, 251.9, 503.8), "NVIDIA RTX PRO 6000 Blackwell data sheet"),
}
"""By the name that ``--card`` takes: the compute capability (NVIDIA, "CUDA GPU Compute Capability"), the memory in GiB,
the bandwidth in units of 10^9 bytes, 10^12 floating point operations a second by type of numbers, and the source of all
but the memory. A type that is not there has the speed of float32. The memory is what CUDA reports on Linux, as
PyTorch's messages quote it when memory runs out; with one digit behind the point no message was found, and it is 97 to
99 % of what the card is sold with, or 92 % where error correction takes its part (A10, L4)."""

CARDS = {
    name: Machine(
        name=name,
        source=source,
        is_measured=False,
        operations_per_second={kind: TERA * speed for kind, speed in teraflops.items()},
        bytes_per_second=GIGA * bandwidth,
        memory_bytes=round(memory * GIB),
    )
    for name, (_, memory, bandwidth, teraflops, source) in _FIGURES.items()
}
"""Each card as a machine; of its memory a CUDA context takes a part."""

STAND_IN = "RTX 4090"  # its kernels and speeds are those of a card that is given as a size

_DECORATION = re.compile(r"nvidia|geforce|quadro|tesla|rtx|[^a-z0-9]")
_SIZE = re.compile(r"[\s-]+\d+\s*gi?b$")


def find_card(text: str) -> str | None:
    """Return the name of the card that a user means: ``4090``, ``NVIDIA H100`` or a size such as ``24GiB``.

    ``None`` where it is none. Names of the maker and of families, case, signs and a size behind the name do not count.
    """
    known = {_DECORATION.sub("", name.lower()): name for name in CARDS}
    for asked in (text.lower(), _SIZE.sub("", text.lower())):
        if (name := known.get(_DECORATION.sub("", asked))) is not None:
            return name
    try:
        return f"{parse_bytes(text) / GIB:.4g}GiB" if not text.strip().isdecimal() else None
    except UsageError:
        return None


def machine_of(card: str) -> Machine:
    """Return the card of a name that ``find_card`` gave."""
    if card in CARDS:
        return CARDS[card]
    source = f"{CARDS[STAND_IN].source}, {STAND_IN}"
    return dataclasses.replace(CARDS[STAND_IN], name=card, source=source, memory_bytes=parse_bytes(card))


def capability_of(card: str) -> tuple[int, int]:
    """Return the compute capability of a card of a name that ``find_card`` gave."""
    capability: tuple[int, int] = _FIGURES[card if card in CARDS else STAND_IN][0]
    return capability


CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"  # kernels of attention


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


CHOOSIER = (2, 12)  # the first PyTorch whose cuDNN drops in sixteenths alone


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
