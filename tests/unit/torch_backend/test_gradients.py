"""Gradients of steps that do not repeat themselves, as on a card: what they differ by is measured."""

import functools
import math
import random

import pytest
import torch
from torch import nn

from autorecompute.backends.common.batches import on_few_samples
from autorecompute.backends.common.gradients import PART, relative_difference
from autorecompute.backends.torch.failures import classify
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.live import LiveBytes
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.plans import Choice

X = torch.ones(4, 8)
CHOICES = [Choice("*", "checkpoint")]


class Unordered(nn.Module):
    """Its gradients are off by a random share, as from sums in any order, and by another one where it is recomputed."""

    def __init__(self, noise, error):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.noise, self.error, self.is_recomputed = noise, error, False
        self.random = random.Random(5)

    def forward(self, x):
        """A number whose slope is off."""
        error = self.error if self.is_recomputed else 0.0
        return (x * self.weight * (1 + error + self.noise * self.random.uniform(-1, 1))).sum()


class Board:
    """Switches recompute on in the model; like that of compiled code, it does not promise the same bits."""

    is_exact = False
    choices = ()

    def __init__(self, model):
        self.model = model

    def set(self, choices):
        """Nothing is recomputed without one."""
        self.choices = tuple(choices)
        self.model.is_recomputed = bool(self.choices)


@pytest.mark.parametrize(
    ("noise", "error", "agrees"),
    [(0.0, 0.0, True), (0.0, 0.01, False), (0.005, 0.0, True), (0.005, 0.1, False), (0.5, 0.3, False)],
    ids=["exact", "wrong", "noisy", "noisy and wrong", "too noisy to tell"],
)
def test_a_config_may_differ_by_what_steps_differ_by(noise, error, agrees):
    """By four times as much, and never by more than a twentieth."""
    model = Unordered(noise, error)
    check = check_gradients(model, Board(model), CHOICES, (X,), {})
    assert check.agrees is agrees
    assert ("steps without recompute" in check.message) is not agrees
    assert not model.is_recomputed


class Rounded(Unordered):
    """Multiplies in bfloat16, as autocast has it: the gradient of the weight is rounded, which is in float32."""

    def forward(self, x):
        """The sum of its products, each with a weight of its own."""
        products = torch.outer(x[0].bfloat16(), (self.weight * (1 + self.error * self.is_recomputed)).bfloat16())
        return (products.float() * torch.linspace(0.1, 1, products.numel()).view_as(products)).sum()


@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (0.01, True), (0.1, False)])
def test_what_autocast_rounded_may_be_rounded_another_way(error, agrees):
    """By what bfloat16 allows, and not float32."""
    model = Rounded(0.0, error)
    model.weight = nn.Parameter(torch.rand(2048))
    assert check_gradients(model, Board(model), CHOICES, (X,), {}).agrees is agrees


class Plain:
    """Switches nothing, and promises the same bits."""

    is_exact = True
    choices = ()

    def set(self, choices):
        """Kept, as those of the tool are."""
        self.choices = tuple(choices)


def test_no_more_gradients_are_held_than_at_the_end_of_a_step():
    """A model that fills the memory with its weights is compared where it can train."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(16)))
    x = torch.rand(2, 256)
    weights = list(model.parameters())
    gradient_bytes = sum(parameter.nbytes for parameter in weights)
    with LiveBytes([*weights, x]) as live:
        check = check_gradients(model, Plain(), CHOICES, (x,), {})
    assert check.agrees
    largest = max(parameter.nbytes for parameter in weights)
    assert gradient_bytes < live.peak - live.base < gradient_bytes + 4 * largest


class Scaled(Unordered):
    """Returns what it computes beside a scale, which a loss outside of it is made of."""

    def __init__(self, error):
        super().__init__(0.0, error)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        """Features, and what the script multiplies them by."""
        wrong = self.error if self.is_recomputed else 0.0
        return x * self.weight * (1 + wrong), self.scale.exp()


@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (0.01, False)])
def test_a_scale_hides_no_wrong_features(error, agrees):
    """An output of a single number need not be the loss."""
    model = Scaled(error)
    assert check_gradients(model, Board(model), CHOICES, (X,), {}).agrees is agrees


class Forgetful(nn.Module):
    """A weight of it takes part without recompute only."""

    def __init__(self):
        super().__init__()
        self.kept, self.lost = nn.Parameter(torch.ones(8)), nn.Parameter(torch.ones(8))
        self.is_recomputed = False

    def forward(self, x):
        """Both weights, or one."""
        kept = x * self.kept
        return (kept if self.is_recomputed else kept + 0 * self.lost).sum()


def test_a_gradient_that_is_missing_is_infinitely_far_off():
    """Also where it would be zero."""
    model = Forgetful()
    check = check_gradients(model, Board(model), CHOICES, (X,), {})
    assert not check.agrees
    assert check.parameter == "lost"
    assert check.worst == math.inf


@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART + 4])
def test_large_gradients_are_compared_in_parts(place):
    """A difference counts wherever it is, beside the largest number of all, and what is no number in any part."""
    expected = torch.ones(2 * PART + 5)
    expected[PART // 2] = 4
    found = expected.clone()
    assert relative_difference(expected, found) == 0
    found[place] = 2
    assert relative_difference(expected, found) == 0.25
    found[place] = math.nan
    assert relative_difference(expected, found) == math.inf


def test_an_overflow_in_another_part_hides_no_difference():
    """Beside what is infinite nothing would differ."""
    expected = torch.ones(2 * PART)
    expected[0] = math.inf
    found = expected.clone()
    assert relative_difference(expected, found) == 0
    found[-1] = 2
    assert relative_difference(expected, found) == math.inf


class Attending(nn.Module):
    """Has a gradient that is nothing but rounding, as that of a key's bias, beside one that is right or wrong."""

    def __init__(self, error):
        super().__init__()
        self.weight, self.other, self.bias = (nn.Parameter(torch.ones(8)) for _ in range(3))
        self.error, self.is_recomputed, self.random = error, False, random.Random(5)

    def forward(self, x):
        """A number."""
        error = 1 + self.error * self.is_recomputed
        return (x * (error * self.weight + self.other + 1e-9 * self.random.uniform(-1, 1) * self.bias)).sum()


@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (0.1, False)])
def test_a_gradient_that_is_only_rounding_tells_nothing(error, agrees):
    """It differs by any amount between two steps without recompute, and the others are compared all the same."""
    model = Attending(error)
    check = check_gradients(model, Board(model), CHOICES, (X,), {})
    assert check.agrees is agrees
    assert check.parameter == ("" if agrees else "weight")


class Halved(Unordered):
    """Has gradients in float16 that are too small for it, as of a mean over many tokens."""

    def forward(self, x):
        """A mean."""
        error = 1 + self.error * self.is_recomputed
        return (x.half() * (self.weight.half() * error)).float().mean() * 1e-6


@pytest.mark.parametrize(("error", "agrees"), [(0.0, True), (0.2, False)])
def test_gradients_in_float16_are_compared_with_a_loss_scale(error, agrees):
    """Without one they would all be zero, and equal whatever is computed."""
    model = Halved(0.0, error)
    model.weight = nn.Parameter(torch.rand(2048).half())
    x = torch.rand(4, 2048)
    assert check_gradients(model, Board(model), CHOICES, (x,), {}).agrees is agrees


class SequenceFirst(nn.Module):
    """A transformer as PyTorch has it: its first dimension is the sequence, and the mask has as many rows."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, mask):
        """The mean of the squares."""
        return self.encoder(x, mask).square().mean()


def test_a_call_that_cannot_be_cut_is_compared_as_it_is():
    """Cut to two rows, the mask has another form than the scores."""
    model, args, kwargs = SequenceFirst(), (torch.rand(12, 3, 32),), {"mask": torch.zeros(12, 12)}
    board = Tuned.of(model, args, kwargs).board
    compare = functools.partial(check_gradients, model, board, [Choice("encoder.layers.*", "checkpoint")])
    check = on_few_samples(compare, args, kwargs, 12, classify)
    assert (check.agrees, check.worst, check.steps) == (True, 0.0, 2)
