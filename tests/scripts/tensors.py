"""Trains on tensors that it draws itself: four samples at a time, or as many as AUTORECOMPUTE_BATCH_SIZE names."""

import itertools
import os
import sys

import torch
from onnxruntime.training.ortmodule import ORTModule

from models import FEATURES, Classifier

batch = int(os.environ.get("AUTORECOMPUTE_BATCH_SIZE", "4")) if "--from-environment" in sys.argv else 4
model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in itertools.count():
    optimizer.zero_grad()
    model(torch.randn(batch, FEATURES)).square().mean().backward()
    optimizer.step()
    print("train", batch)
