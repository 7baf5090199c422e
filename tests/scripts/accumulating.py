"""Trains with three forwards to an optimizer step, and evaluates in between."""

import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import FEATURES, Classifier, classified

FORWARDS = 3

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
held_out = torch.randn(50, FEATURES)
batches = itertools.chain.from_iterable(itertools.repeat(classified(drop_last=True)))
for number, (inputs, labels) in enumerate(batches, start=1):
    (cross_entropy(model(inputs), labels) / FORWARDS).backward()
    model.eval()
    with torch.no_grad():
        model(held_out)
    model.train()
    if number % FORWARDS == 0:
        optimizer.step()
        optimizer.zero_grad()
