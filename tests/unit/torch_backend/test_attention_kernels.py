"""Which kernel attention takes on which card, by the rules of PyTorch's source."""

import pytest

from autorecompute.backends.torch.attention_kernels import AttentionCall, Kernel, kernel_of
from autorecompute.backends.torch.cards import CARDS

CUDNN, FLASH, EFFICIENT, MATH = Kernel.CUDNN, Kernel.FLASH, Kernel.EFFICIENT, Kernel.MATH


def taken(card, dtype="bfloat16", *, heads=(4, 4), lengths=(128, 128), size=64, release=(2, 13), **more):
    """The kernel of a call for a query and a key with these heads and lengths."""
    query, key = ((2, number_of_heads, length, size) for number_of_heads, length in zip(heads, lengths, strict=True))
    call = AttentionCall(dtype=dtype, query=query, key=key, value=key, **more)
    return kernel_of(call, CARDS[card].capability, release)


@pytest.mark.parametrize(
    ("dtype", "kernels"),
    [
        ("bfloat16", {"V100": MATH, "T4": MATH, "A100": FLASH, "L4": FLASH, "H100": CUDNN, "RTX 5090": FLASH}),
        ("float16", {"V100": EFFICIENT, "T4": EFFICIENT, "A100": FLASH, "L4": FLASH, "B200": CUDNN}),
        ("float32", {"V100": EFFICIENT, "T4": EFFICIENT, "A100": EFFICIENT, "H100": EFFICIENT}),
        ("float64", {"V100": MATH, "A100": MATH, "H100": MATH}),
    ],
)
def test_the_type_decides_first(dtype, kernels):
    """Fused kernels of 16 bits from Ampere on, cuDNN on Hopper and Blackwell, no kernel of 64 bits."""
    assert {card: taken(card, dtype) for card in kernels} == kernels


@pytest.mark.parametrize(
    ("card", "more", "kernel"),
    [
        ("A100", {"mask": (128, 128)}, EFFICIENT),
        ("H100", {"mask": (2, 1, 1, 128)}, CUDNN),
        ("H100", {"mask": (2, 128, 128)}, EFFICIENT),
        ("H100", {"mask": (2, 1, 64, 128)}, EFFICIENT),
        ("H100", {"mask": (128, 128), "mask_learns": True}, EFFICIENT),
    ],
    ids=["flash takes none", "broadcast", "of three dimensions", "of another length", "that learns"],
)
def test_flash_takes_no_mask_and_cudnn_not_every_one(card, more, kernel):
    """The memory efficient kernel takes the others."""
    assert taken(card, **more) == kernel


@pytest.mark.parametrize(
    ("card", "size", "more", "kernel"),
    [
        ("H100", 128, {}, CUDNN),
        ("H100", 136, {}, FLASH),
        ("H100", 100, {}, FLASH),
        ("A100", 256, {}, FLASH),
        ("A100", 264, {}, EFFICIENT),
        ("A100", 100, {"mask": (128, 128)}, MATH),
        ("RTX 4090", 192, {}, FLASH),
        ("RTX 4090", 200, {}, EFFICIENT),
        ("RTX 4090", 256, {}, FLASH),
        ("RTX 4090", 256, {"dropout": 0.5}, EFFICIENT),
        ("A100", 256, {"dropout": 0.5}, FLASH),
    ],
)
def test_each_kernel_has_its_sizes_of_heads(card, size, more, kernel):
    """Up to 128 and 256, in multiples of 8 but for flash, and with gaps on cards with less shared memory."""
    assert taken(card, size=size, **more) == kernel


@pytest.mark.parametrize(("card", "kernel"), [("V100", EFFICIENT), ("A100", MATH)])
def test_the_alignment_of_heads_depends_on_the_card(card, kernel):
    """Heads of 30 numbers of float32 are taken before Ampere alone."""
    assert taken(card, "float32", size=30) == kernel


@pytest.mark.parametrize(("dropout", "kernel"), [(0.1, FLASH), (0.125, CUDNN)])
def test_cudnn_drops_in_sixteenths(dropout, kernel):
    """A common dropout of 0.1 is for flash attention."""
    assert taken("H100", dropout=dropout) == kernel


@pytest.mark.parametrize(
    ("card", "size", "kernel"), [("H100", 64, CUDNN), ("H100", 256, CUDNN), ("B200", 256, FLASH), ("A100", 64, FLASH)]
)
def test_cudnn_took_more_before_pytorch_2_12(card, size, kernel):
    """Any dropout, and on Hopper heads twice as large."""
    assert taken(card, size=size, dropout=0.1, release=(2, 11)) == kernel


def test_flash_takes_a_causal_mask_of_squares_alone():
    """Other kernels take it where query and key differ in length."""
    assert taken("A100", is_causal=True) == FLASH
    assert taken("A100", is_causal=True, lengths=(64, 128)) == EFFICIENT
    assert taken("A100", lengths=(64, 128)) == FLASH


@pytest.mark.parametrize(
    ("card", "dtype", "more", "kernel"),
    [
        ("A100", "bfloat16", {}, FLASH),
        ("A100", "float32", {}, MATH),
        ("A100", "bfloat16", {"mask": (128, 128)}, MATH),
        ("H100", "bfloat16", {"mask": (128, 128)}, CUDNN),
    ],
)
def test_grouped_heads_are_not_for_the_memory_efficient_kernel(card, dtype, more, kernel):
    """They are for flash attention and cuDNN, and written out elsewhere."""
    assert taken(card, dtype, heads=(8, 2), is_grouped=True, **more) == kernel
    assert taken(card, dtype, heads=(8, 2), **more) == MATH


@pytest.mark.parametrize(
    "more", [{"lengths": (128, 0)}, {"has_plain_strides": False}, {"heads": (8, 3), "is_grouped": True}]
)
def test_what_no_kernel_takes_is_written_out(more):
    """Empty sequences, rows with gaps, heads that cannot be shared."""
    assert taken("H100", **more) == MATH


def test_attention_of_three_dimensions_is_written_out():
    """Heads have to be a dimension of their own."""
    call = AttentionCall(dtype="bfloat16", query=(8, 128, 64), key=(8, 128, 64), value=(8, 128, 64))
    assert kernel_of(call, CARDS["A100"].capability) == MATH
