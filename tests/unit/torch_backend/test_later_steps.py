"""Recompute in steps that are not like the first one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.switch.intercepting import around_of
from stand_ins.late import WIDTH, Averaging, Late, Normalized, Rerouted, Shifted, blocks, drops, train
from stand_ins.surveyed import Surveyed

BATCHES, LATE = (*[6] * 6, *[5] * 2), 3


class Frozen(Normalized):
    """The bias of a norm is frozen, which no node saves."""

    def forward(self, x):
        self.norm.bias.requires_grad_(not self.is_late)
        return x + self.second(functional.gelu(self.norm(self.first(x))))


class Hooked(Late):
    """The script's own hooks are around the block."""

    def forward(self, x):
        if not self.is_late:
            return self.compute(x)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda kept: kept):
            return self.compute(x)

    def compute(self, x):
        return x + self.second(functional.gelu(self.first(x) * torch.tanh(x)))


class Scaled(Late):
    """A dropout's mask is a tensor of many numbers later."""

    def forward(self, x):
        mask = torch.rand_like(x) if self.is_late else torch.bernoulli(torch.full_like(x, 0.5)) * 2
        return x + self.second(torch.tanh(self.first(x)) * mask)


class Paired(Late):
    """Every sample is held against every prototype; a later batch has as many samples as there are prototypes."""

    def __init__(self):
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(5, WIDTH))

    def forward(self, x):
        samples, prototypes = torch.tanh(self.first(x)).unsqueeze(1), torch.tanh(self.prototypes).unsqueeze(0)
        return x + self.second(functional.gelu(samples * prototypes)).mean(1)


class Reparametrized(Late):
    """The weight is made anew before each call."""

    def __init__(self):
        super().__init__()
        with pytest.warns(FutureWarning, match="weight_norm"):
            nn.utils.weight_norm(self.first)

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(x)))


def loss_of_two_calls(model, x):
    return (model(x) - model(x.flip(0)) * 0.5).square().mean()


def losses_with(kind, config):
    """The losses of a training, and what is around blocks."""
    torch.manual_seed(0)
    model = nn.Sequential(*(kind() for _ in range(3)))
    if config is None:
        return train(model, BATCHES, LATE, loss_of_two_calls), set()
    surveyed = Surveyed(model, Script((torch.randn(6, WIDTH),), {}))
    board = surveyed.board
    losses = train(model, BATCHES, LATE, loss_of_two_calls, lambda: board.set(config(surveyed.found)))
    return losses, {one for effect in board.effects for one in around_of(model.get_submodule(effect.path))}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        *((kind, drops) for kind in (Normalized, Frozen, Hooked, Shifted, Rerouted, Scaled, Paired)),
        *((kind, blocks) for kind in (Normalized, Shifted, Rerouted, Scaled, Paired, Averaging, Reparametrized)),
    ],
)
def test_a_training_has_the_losses_of_no_recompute(kind, config):
    expected, _ = losses_with(kind, None)
    losses, arounds = losses_with(kind, config)
    assert arounds
    assert losses == expected
