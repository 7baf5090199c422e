"""Trains with an optimizer that calls the model itself, once a step or several times."""

import argparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import Classifier, classified

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=1e-3, max_iter=3, tolerance_change=0),
}

parser = argparse.ArgumentParser()
parser.add_argument("--optimizer", choices=OPTIMIZERS, required=True)
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = OPTIMIZERS[args.optimizer](model.parameters())
loader = classified(drop_last=True)
for _ in range(100_000):
    for inputs, labels in loader:

        def closure(inputs=inputs, labels=labels):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            print("forward", len(inputs))
            return loss

        optimizer.step(closure)
        print("step")
