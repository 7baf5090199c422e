"""Trains one linear layer, in which nothing can be recomputed."""

import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES

model = ORTModule(nn.Linear(FEATURES, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(192, FEATURES)).square().mean().backward()
    optimizer.step()
