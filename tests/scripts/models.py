"""The models that the scripts beside this file train, and what their processes hold."""

import re
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES, LENGTH, WIDTH = 16, 4, 32, 64


def classified(count=128, **options):
    """A loader of random samples and their classes, four at a time unless told otherwise."""
    samples = TensorDataset(torch.randn(count, FEATURES), torch.randint(CLASSES, (count,)))
    return DataLoader(samples, **{"batch_size": 4, **options})


class Classifier(nn.Module):
    """Two layers: the smallest model with something to recompute."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, CLASSES))

    def forward(self, x):
        return self.layers(x)


class Lora(nn.Module):
    """A frozen layer beside a trained product of two thin ones."""

    def __init__(self, base, inner, outer, rank=4):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(inner, rank, bias=False), nn.Linear(rank, outer, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    """A transformer layer that normalizes last, as BERT's do."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 8 * width), nn.GELU(), nn.Linear(8 * width, width))
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.attention_norm(x + self.dropout(self.attend(x)))
        return self.mlp_norm(x + self.dropout(self.mlp(x)))

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = (part.reshape(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        weights = self.dropout(torch.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1))
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    """A transformer whose activations outweigh all else it holds at a batch of 192."""

    def __init__(self, layers=3, heads=2, dropout=0.1, block=Block):
        super().__init__()
        self.blocks = nn.Sequential(*(block(WIDTH, heads, dropout) for _ in range(layers)))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.head(self.blocks(x).mean(dim=1))


def own_peak_bytes():
    """The most it ever held. Unlike ``ru_maxrss`` this does not begin with what its parent held when it was started."""
    return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1])
