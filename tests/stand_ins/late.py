"""Blocks that do something else from a later step on."""

import torch
from torch import nn
from torch.nn import functional

from autorecompute.plans import Choice

WIDTH = 8


class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.is_late = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), False


class Normalized(Late):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        self.norm.train(not self.is_late)
        return x + self.second(functional.gelu(self.norm(self.first(x))))


class Rerouted(Late):
    """Another tensor of the same kind goes into a sum."""

    def forward(self, x):
        one, other = torch.tanh(self.first(x)), torch.tanh(self.second(x))
        added = one + (one if self.is_late else other)
        return self.second(functional.gelu(added)) + other


def add_little(x):
    return x + 0.01


class Shifted(Late):
    """Adds another number, which stands in another function."""

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return x + self.second(functional.gelu(add_little(h) if self.is_late else h + 1.0))


class Averaging(Late):
    """Writes buffers past their versions, the small one from a later step on."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("large", torch.zeros(2**15))

    def forward(self, x):
        y = torch.tanh(self.first(x) - self.mean - self.large[:WIDTH])
        self.large.data[:WIDTH].add_(y.detach().mean(0))
        if self.is_late:
            self.mean.data.lerp_(y.detach().mean(0), 0.5)
        return x + y


def train(model, batches, late, lose, before_step=lambda: None):
    """The losses of a training whose blocks do something else from step ``late`` on."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05), []
    torch.manual_seed(2)
    for step, batch in enumerate(batches):
        for block in model.children():
            block.is_late = step >= late
        before_step()
        loss = lose(model, torch.randn(batch, WIDTH))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def drops(found):
    """Every operator that can be dropped in a model that was looked at."""
    return [Choice(site.name, "drop") for site in found.sites if "drop" in site.options]


def blocks(found):
    return [Choice(name, "checkpoint") for name in found.blocks]
