"""Trains a model that keeps an activation and its reshaped self, which lie in one buffer."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES


class Sharing(nn.Module):
    """A layer whose activation goes on in two shapes."""

    def __init__(self):
        super().__init__()
        self.inner, self.flat = nn.Linear(FEATURES, FEATURES), nn.Linear(4 * FEATURES, 8)
        self.outer = nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        hidden = nn.functional.gelu(self.inner(x))
        flat = self.flat(hidden.reshape(len(x), 4 * FEATURES))
        return flat.sum() + (self.outer(hidden) * hidden).sum()


torch.manual_seed(0)
model = ORTModule(Sharing())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4, 4, FEATURES)).backward()
    optimizer.step()
    optimizer.zero_grad()
