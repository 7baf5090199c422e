"""Buffers that a module begins to write after its first call."""

import copy

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.checkpoints import Checkpoint
from autorecompute.backends.torch.interception import put_around
from autorecompute.backends.torch.module_tensors import SMALL


class Warming(nn.Module):
    """Begins to write its buffer in its third call, in place or not, and computes with what it was."""

    def __init__(self, numbers, *, in_place):
        super().__init__()
        self.linear, self.in_place = nn.Linear(4, 4), in_place
        self.register_buffer("scale", torch.ones(numbers))
        self.steps = 0

    def forward(self, x):
        """A product with the buffer, which is twice as large then."""
        result = torch.tanh(self.linear(x) * self.scale[0].item())
        self.steps += 1
        if self.steps > 2:
            if self.in_place:
                self.scale.mul_(2)
            else:
                self.scale = self.scale * 2
        return result


def gradients_of_warming(layer, steps=4):
    """Those of some steps, and the buffer at their end."""
    found = []
    for _ in range(steps):
        layer.zero_grad()
        layer(torch.ones(2, 4)).square().sum().backward()
        found.append(layer.linear.weight.grad.clone())
    return [*found, layer.scale]


@pytest.mark.parametrize(("numbers", "in_place"), [(4, True), (4, False), (SMALL, False)])
def test_a_buffer_that_is_first_written_later_is_made_again_as_it_was(numbers, in_place):
    """With what was written the gradients of that step would be wrong without a word."""
    layer = Warming(numbers, in_place=in_place)
    expected = gradients_of_warming(copy.deepcopy(layer))
    put_around(layer, [Checkpoint(layer)])
    assert all(map(torch.equal, gradients_of_warming(layer), expected))


def test_a_large_buffer_that_is_first_written_later_is_told():
    """Nobody has kept what it was, and a training does not end for it; in the next step somebody has."""
    layer = Warming(SMALL, in_place=True)
    expected = gradients_of_warming(copy.deepcopy(layer))
    put_around(layer, [Checkpoint(layer)])
    gradients_of_warming(layer, steps=2)
    with pytest.warns(UserWarning, match=r"a large buffer .* was first written in a later call"):
        gradients_of_warming(layer, steps=1)
    assert torch.equal(gradients_of_warming(layer, steps=1)[0], expected[3])
