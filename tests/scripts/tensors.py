"""Trains on tensors that it draws itself, four samples at a time whatever is asked of it."""

import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule

from models import FEATURES, Classifier

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, FEATURES)).square().mean().backward()
    optimizer.step()
