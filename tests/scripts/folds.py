"""Trains the folds of a cross-validation, with a listener of its own to the backend."""

import gc
import json
import tempfile
import weakref
from pathlib import Path

import torch
from autorecompute.backends.ortmodule.worker import OrtModuleBackend
from autorecompute.plans import Config
from torch import nn

STEPS, BATCH, FEATURES = 2, 8, 6


class Listener:
    """Keeps the batches of a step that it is told of."""

    def __init__(self):
        self.batches = []

    def on_session(self, detect):
        detect()
        return Config()

    def on_forward(self, batch, _check):
        self.batches.append(batch)


def train_fold():
    model = ORTModule(nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(BATCH, FEATURES)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        backend.end_step()
        print("fold", json.dumps(listener.batches))
        listener.batches.clear()
    return model


with tempfile.TemporaryDirectory() as folder:
    backend, listener = OrtModuleBackend(Path(folder)), Listener()
    backend.install(listener)
    from onnxruntime.training.ortmodule import ORTModule

    earlier = [weakref.ref(train_fold().module) for _ in range(2)]
    gc.collect()
    print("earlier folds", json.dumps([model() is not None for model in earlier]))
    kept = train_fold()
    backend.switch(Config(), profiles=True)
    train_fold()
    print("profiled", json.dumps(len(backend.take_profile().operations) > 0))
