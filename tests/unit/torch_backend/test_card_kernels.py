"""Which kernel attention takes on which card, by the rules of PyTorch's source, and what it and dropout keep."""

import contextlib
import math

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from autorecompute.backends.torch.fake.machine import CardKernels
from autorecompute.backends.torch.fake.repeats import card_memory
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.storages import Storages
from autorecompute.backends.torch.forecast.cards import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    AttentionCall,
    capability_of,
    kernel_of,
)
from autorecompute.backends.torch.forecast.records import CHECKPOINT
from autorecompute.backends.torch.switch.intercepting import attention_by, intercept_attention
from autorecompute.plans import Choice
from tiny_models import call_of, make


def taken(card, dtype="bfloat16", *, heads=(4, 4), lengths=(128, 128), size=64, release=(2, 13), **more):
    query, key = ((2, number_of_heads, length, size) for number_of_heads, length in zip(heads, lengths, strict=True))
    call = AttentionCall(dtype=dtype, query=query, key=key, value=key, **more)
    return kernel_of(call, capability_of(card), release)


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
        # Flash takes no mask, and cuDNN not every one: none of three dimensions, of another length, or that learns.
        ("A100", {"mask": (128, 128)}, EFFICIENT),
        ("H100", {"mask": (2, 1, 1, 128)}, CUDNN),
        ("H100", {"mask": (2, 128, 128)}, EFFICIENT),
        ("H100", {"mask": (2, 1, 64, 128)}, EFFICIENT),
        ("H100", {"mask": (128, 128), "mask_learns": True}, EFFICIENT),
        # Heads up to 128 and 256, in multiples of 8 but for flash, and with gaps on cards with less shared memory.
        ("H100", {"size": 128}, CUDNN),
        ("H100", {"size": 136}, FLASH),
        ("H100", {"size": 100}, FLASH),
        ("A100", {"size": 256}, FLASH),
        ("A100", {"size": 264}, EFFICIENT),
        ("A100", {"size": 100, "mask": (128, 128)}, MATH),
        ("RTX 4090", {"size": 192}, FLASH),
        ("RTX 4090", {"size": 200}, EFFICIENT),
        ("RTX 4090", {"size": 256}, FLASH),
        ("RTX 4090", {"size": 256, "dropout": 0.5}, EFFICIENT),
        ("A100", {"size": 256, "dropout": 0.5}, FLASH),
        # Heads of 30 numbers of float32 are taken before Ampere alone.
        ("V100", {"dtype": "float32", "size": 30}, EFFICIENT),
        ("A100", {"dtype": "float32", "size": 30}, MATH),
        # cuDNN drops in sixteenths; before PyTorch 2.12 it took any dropout, and on Hopper heads twice as large.
        ("H100", {"dropout": 0.1}, FLASH),
        ("H100", {"dropout": 0.125}, CUDNN),
        ("H100", {"dropout": 0.1, "release": (2, 11)}, CUDNN),
        ("H100", {"dropout": 0.1, "release": (2, 11), "size": 256}, CUDNN),
        ("B200", {"dropout": 0.1, "release": (2, 11), "size": 256}, FLASH),
        ("A100", {"dropout": 0.1, "release": (2, 11)}, FLASH),
        # Flash takes a causal mask of squares alone.
        ("A100", {"is_causal": True}, FLASH),
        ("A100", {"is_causal": True, "lengths": (64, 128)}, EFFICIENT),
        ("A100", {"lengths": (64, 128)}, FLASH),
        # Grouped heads are not for the memory efficient kernel, and have to be told of.
        ("A100", {"heads": (8, 2), "is_grouped": True}, FLASH),
        ("A100", {"heads": (8, 2), "is_grouped": True, "dtype": "float32"}, MATH),
        ("A100", {"heads": (8, 2), "is_grouped": True, "mask": (128, 128)}, MATH),
        ("H100", {"heads": (8, 2), "is_grouped": True, "mask": (128, 128)}, CUDNN),
        ("A100", {"heads": (8, 2)}, MATH),
        ("H100", {"heads": (8, 2), "mask": (128, 128)}, MATH),
        # Empty sequences, rows with gaps and heads that cannot be shared are written out.
        ("H100", {"lengths": (128, 0)}, MATH),
        ("H100", {"has_plain_strides": False}, MATH),
        ("H100", {"heads": (8, 3), "is_grouped": True}, MATH),
    ],
    ids=str,
)
def test_a_fused_kernel_is_taken_where_its_rules_allow_it(card, more, kernel):
    assert taken(card, **more) == kernel


def test_attention_of_three_dimensions_is_written_out():
    """Heads have to be a dimension of their own."""
    call = AttentionCall(dtype="bfloat16", query=(8, 128, 64), key=(8, 128, 64), value=(8, 128, 64))
    assert kernel_of(call, capability_of("A100")) == MATH


BATCH, HEADS, LENGTH, SIZE = 2, 4, 100, 64
ROWS, NUMBERS = BATCH * HEADS * LENGTH, BATCH * HEADS * LENGTH * SIZE


@contextlib.contextmanager
def saved():
    found = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: found.append(one) or one, lambda one: one):
        yield found


def kept(card, dtype=torch.bfloat16, mask=None, **options):
    """The kernel that is taken, and the bytes that it keeps beside query, key and value."""
    kernels, storages = CardKernels(capability_of(card)), Storages()
    with FakeTensorMode(), kernels.active():
        shape = (BATCH, LENGTH, HEADS, SIZE)
        inputs = [torch.empty(shape, dtype=dtype).transpose(1, 2).requires_grad_() for _ in range(3)]
        for tensor in inputs:
            storages.see(tensor)
        with saved() as found:
            given = None if mask is None else torch.empty(mask, dtype=torch.bool)
            result = functional.scaled_dot_product_attention(*inputs, given, **options)
        result.sum().backward()
        assert [tensor.grad.shape for tensor in inputs] == [tensor.shape for tensor in inputs]
        (kernel,) = kernels.taken
        return kernel, sum(storages.see(tensor)[1] for tensor in found)


def test_each_kernel_keeps_its_result_and_what_it_needs_to_go_back():
    """A fused one a number for each row, and the state of the random numbers: the memory efficient one in rows of 32.

    Dropout costs it nothing more. Attention that is written out keeps the scores, in float32 where they have 16 bits,
    with scaled copies of query, key and value.
    """
    assert kept("A100", is_causal=True) == (FLASH, 2 * NUMBERS + 4 * ROWS + 24)
    assert kept("H100", is_causal=True) == (CUDNN, 2 * NUMBERS + 4 * ROWS + 16)
    assert kept("A100", torch.float32) == (EFFICIENT, 4 * NUMBERS + 4 * BATCH * HEADS * 128 + 16)
    assert kept("A100", dropout_p=0.1) == kept("A100")
    assert kept("V100") == (MATH, 4 * ROWS * LENGTH + 3 * 4 * NUMBERS)


def test_a_mask_is_kept_as_numbers():
    """Once, however many heads it is for; in rows that are filled up to a multiple of 8 for the efficient kernel."""
    mask = BATCH * LENGTH * LENGTH
    assert kept("H100", mask=(BATCH, 1, LENGTH, LENGTH))[1] - kept("H100")[1] == 2 * mask
    size = 2 * NUMBERS + 4 * BATCH * HEADS * 128 + 16 + 2 * BATCH * LENGTH * math.ceil(LENGTH / 8) * 8
    assert kept("A100", mask=(BATCH, 1, LENGTH, LENGTH)) == (EFFICIENT, size)


@pytest.mark.parametrize("more", [{}, {"is_causal": True}])
def test_dropout_costs_attention_that_is_written_out_the_scores_and_a_byte_for_each(more):
    """As native_dropout keeps them on a card; the CPU's mask has the size of the scores."""
    assert kept("V100", dropout_p=0.1, **more)[1] - kept("V100", **more)[1] == 5 * ROWS * LENGTH


def test_heads_are_filled_up_for_flash_attention():
    with FakeTensorMode(), CardKernels(capability_of("A100")).active():
        query = torch.empty(1, 2, 16, 20, dtype=torch.bfloat16, requires_grad=True)
        result = functional.scaled_dot_product_attention(query, query, query)
        result.sum().backward()
        assert result.shape == query.shape == query.grad.shape


def test_autocast_decides_about_the_kernel():
    kernels = CardKernels(capability_of("A100"))
    with FakeTensorMode(), torch.autocast("cpu", dtype=torch.bfloat16), kernels.active():
        query = torch.empty(1, 2, 16, 32)
        assert functional.scaled_dot_product_attention(query, query, query).dtype == torch.bfloat16
    assert kernels.taken == {FLASH: 1}


def test_the_mask_of_a_dropout_has_a_byte_for_each_number():
    """On a CPU it has as many as the number; nothing is kept where nothing is dropped."""

    def kept_by(layer):
        with saved() as found:
            layer(torch.empty(8, 16, requires_grad=True)).sum().backward()
        return sum(tensor.nbytes for tensor in found)

    with FakeTensorMode():
        plain = kept_by(nn.Dropout(0.1))
        with CardKernels(capability_of("A100")).active():
            assert (kept_by(nn.Dropout(0.1)), plain) == (8 * 16, 4 * 8 * 16)
            assert kept_by(nn.Dropout(0.1).eval()) == 0


@pytest.mark.parametrize(
    ("options", "more"), [({}, 1), ({"foreach": False}, 0), ({"foreach": True}, 1), ({"lr": torch.tensor(0.1)}, 0)]
)
def test_an_optimizer_updates_all_weights_at_once(options, more):
    """Adam takes the bytes of all weights for it; what the script asked for stands, and nothing is left of it."""
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
    optimizer, x = torch.optim.AdamW(model.parameters(), **options), torch.empty(1, 64)
    found = detect(model, (x,), {})
    script, kernels = Script((x,), {}, (optimizer,)), CardKernels(capability_of("A100"))
    steps = FakeSteps(model, found.structure.units, script, found.values)
    with kernels.active([optimizer]), steps.prepared(found.switchboard(model)) as (_, take):
        step = take([], optimizes=True)
    weights, layer = 8 * 64 * 64 * 4, 64 * 64 * 4
    gradients_and_more = card_memory(step).requested - step.base - weights
    assert gradients_and_more == pytest.approx(more * weights, abs=4 * layer)
    assert optimizer.param_groups[0]["foreach"] is options.get("foreach")


@pytest.mark.parametrize("is_intercepted", [False, True])
def test_attention_is_what_it_was_afterwards(is_intercepted):
    intercept_attention(on=is_intercepted)
    before = functional.scaled_dot_product_attention
    with pytest.raises(ZeroDivisionError), attention_by(lambda *_: 1 / 0):
        functional.scaled_dot_product_attention(1, 2, 3)
    assert functional.scaled_dot_product_attention is before
    intercept_attention(on=False)


def peak_of(training, kernels, choices=()):
    found = detect(training.model, *call_of(training))
    steps = FakeSteps(training.model, found.structure.units, Script(*call_of(training)), found.values)
    with kernels.active([]) if kernels is not None else contextlib.nullcontext():
        meter = steps.run(found.switchboard(training.model), choices)
    return meter.peak - meter.base


@pytest.mark.parametrize(("name", "blocks"), [("gpt2", "transformer.h.*"), ("encoder", "")])
def test_a_fake_step_takes_the_cards_kernels(name, blocks):
    training, kernels = make(name), CardKernels(capability_of("A100"))
    assert peak_of(training, kernels) < peak_of(training, None)
    assert kernels.taken == {EFFICIENT: 4}
    if blocks:
        peak_of(training, kernels, [Choice(blocks, CHECKPOINT)])
        assert kernels.taken == {EFFICIENT: 4 + 6}
