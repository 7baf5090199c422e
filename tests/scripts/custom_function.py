"""Trains a model with an autograd.Function whose backward is not the derivative of its forward."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES


class TenfoldGradient(torch.autograd.Function):
    @staticmethod
    def forward(_, x):
        return x * 1.0

    @staticmethod
    def backward(_, gradient):
        return gradient * 10.0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(FEATURES, 1, bias=False)

    def forward(self, x):
        return TenfoldGradient.apply(self.linear(x))


model = ORTModule(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    optimizer.zero_grad()
    model(torch.ones(1, FEATURES)).sum().backward()
    optimizer.step()
    print("gradient", model.get_parameter("linear.weight").grad.max().item())
