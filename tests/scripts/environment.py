"""Trains with the batch that AUTORECOMPUTE_BATCH_SIZE names, on tensors that it draws itself."""

import itertools
import os

import torch
from onnxruntime.training.ortmodule import ORTModule

from models import FEATURES, Classifier

batch = int(os.environ.get("AUTORECOMPUTE_BATCH_SIZE", "4"))
model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(batch, FEATURES)).square().mean().backward()
    optimizer.step()
    print("train", batch)
