"""Gradients of steps that do not repeat themselves, as on a card: what they differ by is measured."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.gradients import check_gradients
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
