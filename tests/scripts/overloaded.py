"""Trains, in plain PyTorch, a model whose last module has no room for more than two samples."""

import argparse
import itertools

import torch
from torch import nn

from models import FEATURES

BEYOND_ANY_ADDRESS = 2**46


class Head(nn.Linear):
    def forward(self, x):
        if len(x) > 2:
            torch.empty(BEYOND_ANY_ADDRESS)
        return super().forward(x)


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=1)
args = parser.parse_args()

blocks = [nn.Sequential(nn.Linear(FEATURES, 64), nn.GELU(), nn.Linear(64, FEATURES)) for _ in range(2)]
model = nn.Sequential(*blocks, Head(FEATURES, FEATURES))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    model(torch.randn(args.bs, FEATURES)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
