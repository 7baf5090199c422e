"""Trains the folds of a cross-validation and then a GAN, with a listener of its own to the backend."""

import gc
import json
import tempfile
import weakref
from pathlib import Path

import torch
from autorecompute.backends.ortmodule.worker import OrtModuleBackend
from autorecompute.plans import Config
from torch import nn

STEPS, BATCH, FEATURES, NOISE = 2, 8, 6, 3


class Listener:
    """Keeps the batches of a step that it is told of, and whether gradients agree where that is asked."""

    def __init__(self):
        self.batches, self.wanted, self.agrees, self.space = [], None, [], None

    def on_session(self, detect):
        self.space = detect().space
        return Config()

    def on_forward(self, batch, check):
        self.batches.append(batch)
        if self.wanted is not None:
            self.agrees.append(check(self.wanted).agrees)
            self.wanted = None


def make(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 32), nn.GELU(), nn.Linear(32, outputs))


def end_step(optimizer):
    optimizer.step()
    optimizer.zero_grad()
    backend.end_step()
    batches, listener.batches = listener.batches, []
    return batches


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(BATCH, FEATURES)).sum().backward()
        print("fold", json.dumps(end_step(optimizer)))


def train_fold():
    model = ORTModule(make(FEATURES, 1))
    train(model)
    return weakref.ref(model.module)


def train_gan():
    critic, generator = ORTModule(make(FEATURES, 1)), ORTModule(make(NOISE, FEATURES))
    critic_optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    for _ in range(STEPS):
        listener.wanted = Config.of(listener.space.plans)
        noise = torch.randn(2 * BATCH, NOISE)
        with torch.no_grad():
            made = generator(noise)[:BATCH]
        critic(torch.randn(BATCH, FEATURES)).sum().backward()
        critic(made).sum().backward()
        critic_optimizer.step()
        critic(generator(noise)[:BATCH]).sum().backward()
        print("gan", json.dumps(end_step(optimizer)))


with tempfile.TemporaryDirectory() as folder:
    backend, listener = OrtModuleBackend(Path(folder)), Listener()
    backend.install(listener)
    from onnxruntime.training.ortmodule import ORTModule

    earlier = [train_fold(), train_fold()]
    gc.collect()
    print("earlier folds", json.dumps([model() is not None for model in earlier]))
    kept = ORTModule(make(FEATURES, 1))
    train(kept)
    backend.switch(Config(), profiles=True)
    train_fold()
    print("profiled", json.dumps(len(backend.take_profile().operations) > 0))
    train_gan()
    for agrees in listener.agrees:
        print("agrees", json.dumps(agrees))
