"""Trains a classifier, with a new DataLoader for each epoch."""

import argparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from models import CLASSES, FEATURES, Classifier

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
samples = TensorDataset(torch.randn(100, FEATURES), torch.randint(CLASSES, (100,)))
step = 0
while step < args.steps:
    for inputs, labels in DataLoader(samples, batch_size=args.bs, shuffle=True):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        step += 1
        if step == args.steps:
            break
