"""Trains a model that checkpoints a part of itself, without reentering autograd."""

import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.utils.checkpoint import checkpoint

from models import FEATURES, Classifier


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = Classifier()

    def forward(self, x):
        return checkpoint(self.classifier, x, use_reentrant=False)


model = ORTModule(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, FEATURES)).square().mean().backward()
    optimizer.step()
