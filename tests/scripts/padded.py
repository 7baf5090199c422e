"""Trains a convolution whose padding is a word, and holds its gradient against PyTorch's."""

import copy

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

torch.manual_seed(0)
plain = nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), nn.Linear(256, 1))
model = ORTModule(copy.deepcopy(plain))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
images = torch.randn(2, 3, 8, 8)
plain(images).sum().backward()
wanted = plain[0].weight.grad
for _ in range(20):
    optimizer.zero_grad()
    model(images).sum().backward()
    optimizer.step()
    print("gradient", "right" if torch.allclose(model.get_parameter("0.weight").grad, wanted, atol=1e-4) else "wrong")
