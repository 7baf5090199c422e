"""A small model that tests compile, whole and with a break in its graph, and what a step of it takes."""

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.compiled.forms import AllocatedLive
from autorecompute.plans import Config

WIDTH, LENGTH, BATCH = 32, 16, 64

# The compiler's own imports and graphs use what torch itself deprecates.
_DEPRECATED = ("DeprecationWarning", "FutureWarning", "UserWarning")
COMPILING = [
    pytest.mark.compiles,
    pytest.mark.usefixtures("fresh_compiler"),
    *(pytest.mark.filterwarnings(f"ignore::{kind}") for kind in _DEPRECATED),
]
"""The marks of tests that compile."""


class Block(nn.Module):
    """A block whose last product reads what the dropout made."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x, *, scale=None):
        del scale
        return x + self.down(self.dropout(torch.nn.functional.gelu(self.up(self.norm(x)))))


class Blocks(nn.Module):
    """Three blocks, which are given a name, and a loss, which may be left to the script."""

    def __init__(self, kind=Block, *, has_loss=True):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(3))
        self._has_loss = has_loss

    def forward(self, x):
        for block in self.blocks:
            x = block(x, scale=None)
        return x.square().mean() if self._has_loss else x


class Broken(Blocks):
    """A model that the compiler has in two graphs."""

    def forward(self, x):
        x = self.blocks[0](x)
        torch._dynamo.graph_break()
        return super().forward(x)


def whole(kind=Block):
    return torch.compile(Blocks(kind))


def in_place():
    """The model keeps its class."""
    model = Blocks()
    model.compile()
    return model


def by_blocks():
    """Regional compilation: a block is compiled once for all."""
    model = Blocks()
    for block in model.blocks:
        block.compile()
    return model


def by_wrapped_blocks():
    """Regional compilation as it was done before modules could compile themselves."""
    model = Blocks()
    for place, block in enumerate(model.blocks):
        model.blocks[place] = torch.compile(block)
    return model


def broken():
    return torch.compile(Broken())


WAYS = {way.__name__: way for way in (whole, in_place, by_blocks, by_wrapped_blocks, broken)}


def batch(size=BATCH):
    return torch.randn(size, LENGTH, WIDTH, generator=torch.Generator().manual_seed(5))


def live_bytes(model, board, texts):
    board.set(Config.parse(texts).choices)
    x, meter = batch(), AllocatedLive(lambda: list(model.parameters()))
    for _ in range(2):
        model(x).backward()
        model.zero_grad()
    meter.start()
    model(x).backward()
    taken = meter.stop()
    model.zero_grad()
    board.set([])
    return taken
