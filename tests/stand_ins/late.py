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


def drops(found):
    """Every operator that can be dropped in a model that was looked at."""
    return [Choice(site.name, "drop") for site in found.sites if "drop" in site.options]


def blocks(found):
    return [Choice(name, "checkpoint") for name in found.blocks]
