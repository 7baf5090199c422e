"""How far gradients of two runs are apart."""

import dataclasses
import math
from collections import UserDict

import pytest
import torch

from autorecompute.backends.common.gradients import beside_noise, relative_difference, scalar_of, within
from autorecompute.backends.torch.live import LiveBytes

ONE = torch.tensor([1.0, -4.0])


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (ONE, ONE.clone(), 0.0),
        (ONE, torch.tensor([1.0, -3.0]), 0.25),
        (torch.tensor([4.0 + 0j]), torch.tensor([4.0 + 1j]), 0.25),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (ONE.to_sparse(), torch.tensor([1.0, -3.0]).to_sparse(), 0.25),
        (None, None, 0.0),
        (ONE, None, math.inf),
        (torch.zeros(2), ONE, math.inf),
        (ONE, torch.tensor([1.0, math.nan]), math.inf),
    ],
)
def test_a_difference_is_told_beside_the_largest_entry(expected, found, apart):
    """An imaginary part and a flag count as well, and what is no number or not there is infinitely far off."""
    assert relative_difference(expected, found) == apart


def test_a_difference_is_not_rounded_away():
    """Halves that differ in their last bit are told apart, where their own type would round the share."""
    expected, found = torch.tensor([1.0, 2048.0]).half(), torch.tensor([1.0, 2046.0]).half()
    assert relative_difference(expected, found) == 2 / 2048


def test_each_gradient_is_held_against_its_own_type():
    """A weight in float32 is not excused by one in float16 that is farther off, as it may be."""
    kinds = {"half": "float16", "wide": "float32"}
    check = within({"half": 7.8e-3, "wide": 5e-3}, kinds.__getitem__, 2)
    assert (check.agrees, check.parameter, check.worst) == (False, "wide", 5e-3)
    assert within({"half": 7.8e-3, "wide": 5e-5}, kinds.__getitem__, 2).agrees


@pytest.mark.parametrize(("off", "agrees"), [(0.003, True), (0.005, False)])
def test_what_repeats_itself_no_better_may_be_off_by_more(off, agrees):
    """By four times as much as two equal steps. What is only rounding is left out, unless there is no more of it."""
    found = {"weight": off, "bias of a key": 0.9, "other": 0.0}
    noise = {"weight": 0.001, "bias of a key": 0.8, "other": 0.0}
    check = beside_noise(found, noise, within(found, lambda _: "float32", 2))
    assert check.agrees is agrees
    assert check.parameter == ("" if agrees else "weight")


WIDE = torch.linspace(-1, 1, 2**20).view(2, 2**10, 2**9)


@pytest.mark.parametrize("more", [{}, {"scale": torch.tensor(2.0)}, {"aux_loss": torch.ones(1, 1)}], ids=str)
def test_every_output_weighs_in(more):
    """CLIP returns its scale beside the features, and a mixture of experts a loss of its own beside the logits."""
    weight = torch.ones(2**9, requires_grad=True)
    others = {name: value.clone().requires_grad_() for name, value in more.items()}
    scalar_of({"features": torch.softmax(WIDE * weight, -1), **others}).backward()
    assert weight.grad.abs().max() > 0
    assert all(one.grad.item() == 1 for one in others.values())


@dataclasses.dataclass
class Output:
    """What a model returns in a class of its own."""

    logits: torch.Tensor
    name: str = "scores"


@pytest.mark.parametrize("make", [Output, lambda logits: UserDict(logits=[logits])])
def test_outputs_of_any_kind_weigh_in(make):
    """A script's own dataclass, and what only behaves as a dict."""
    weight = torch.ones(2**9, requires_grad=True)
    scalar_of(make(WIDE * weight)).backward()
    assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_weigh_in_without_a_copy_of_them(dtype):
    """They may be the largest tensor there is: beside them there is room for their gradient alone."""
    logits = WIDE.to(dtype).requires_grad_()
    with LiveBytes([logits]) as live:
        (gradient,) = torch.autograd.grad(scalar_of((logits,)), [logits])
    assert gradient.abs().max() > 0
    assert live.peak - live.base < 1.1 * logits.nbytes
