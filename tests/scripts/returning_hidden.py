"""Trains a model that returns what it is halfway as well: nothing in the backward pass reads that."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 32


class Gated(nn.Module):
    """A sum and the softmax of it, which is all that its own gradient needs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        hidden = self.first(x) + self.second(x)
        return self.last(torch.softmax(hidden, dim=-1)), hidden


model = ORTModule(Gated())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = TensorDataset(torch.randn(64, WIDTH), torch.randint(WIDTH, (64,)))
while True:
    for inputs, labels in DataLoader(samples, batch_size=8):
        outputs, hidden = model(inputs)
        (cross_entropy(outputs, labels) + hidden.square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
