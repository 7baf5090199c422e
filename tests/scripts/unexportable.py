"""Trains a model with an operator in it that ORT cannot train: it has no ONNX form, or no gradient there."""

import argparse
import itertools
import os

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES

OPERATORS = {"lgamma": torch.lgamma, "det": lambda x: torch.linalg.det(x.reshape(-1, 3, 3))}


class Model(nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.linear, self.operator = nn.Linear(FEATURES, 9), operator

    def forward(self, x):
        return self.operator(self.linear(x))


parser = argparse.ArgumentParser()
parser.add_argument("--operator", choices=OPERATORS, required=True)
parser.add_argument("--fall-back", action="store_true", help="train in plain PyTorch where ORT cannot")
args = parser.parse_args()
if args.fall_back:
    os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_UNSUPPORTED_ONNX_MODEL"

model = ORTModule(Model(OPERATORS[args.operator]))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(4, FEATURES)).square().mean().backward()
    optimizer.step()
