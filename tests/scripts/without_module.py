"""Trains a matrix that belongs to no module."""

import argparse

import torch

from models import FEATURES

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

weight = torch.nn.Parameter(torch.randn(FEATURES, 1))
optimizer = torch.optim.SGD([weight], lr=0.01)
for _ in range(args.steps):
    optimizer.zero_grad()
    (torch.randn(4, FEATURES) @ weight).square().mean().backward()
    optimizer.step()
print("trained")
