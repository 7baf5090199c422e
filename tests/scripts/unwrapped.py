"""Trains in plain PyTorch: nobody wrapped the model."""

import argparse

import torch

from models import FEATURES, Classifier

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(args.steps):
    optimizer.zero_grad()
    model(torch.randn(4, FEATURES)).square().mean().backward()
    optimizer.step()
