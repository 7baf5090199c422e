"""Trains a model whose activation is cast from booleans: ORT offers to recompute it whole, or from the cast on."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES


class Gated(nn.Module):
    """Two layers with a gate between them."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        hidden = nn.functional.gelu(self.inner(x))
        gate = (hidden < 0.5).to(torch.float32)
        return self.outer(torch.softmax(hidden * gate, dim=-1) * gate)


torch.manual_seed(0)
model = ORTModule(Gated())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4, 8, FEATURES)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
