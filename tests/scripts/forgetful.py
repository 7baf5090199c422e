"""Trains a model whose gradients can be told to be wrong, and calls it for nothing in every other step.

Its output is in proportion to its last weights: they times their gradients give the loss again, as long as the backward
knows the Dropout mask of the forward.
"""

import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH, FEATURES, WIDTH, LAYERS = 4096, 64, 512, 12


class Layer(nn.Module):
    """Of what it keeps, only Dropout's output can be had again: ORT recomputes no Tanh."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, WIDTH), nn.Linear(WIDTH, FEATURES, bias=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.down(self.dropout(torch.tanh(self.up(x))))


torch.manual_seed(0)
layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
last = layers[-1].down.weight
model = ORTModule(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(2 * BATCH, FEATURES)), batch_size=BATCH)
for step, (inputs,) in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
    loss = model(inputs).sum()
    loss.backward()
    print("gradient off by", abs((last * last.grad).sum().item() / loss.item() - 1))
    if step % 2 == 0:
        model(inputs)
    optimizer.step()
    optimizer.zero_grad()
