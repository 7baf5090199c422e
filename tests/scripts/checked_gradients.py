"""Compares the gradients of each config of a transformer with Dropout, and those of masks that were put out of step."""

import functools
import json
import tempfile
from pathlib import Path

import onnxruntime
import torch
from autorecompute.backends.ortmodule.detection import detect
from autorecompute.backends.ortmodule.worker import check_gradients, rebuild
from autorecompute.plans import Config
from onnxruntime.training.ortmodule import ORTModule

from models import LENGTH, WIDTH, Encoder


class Noisy(torch.nn.Module):
    """Draws noise by an operator that takes its seed when ORT makes a session."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs):
        hidden = torch.nn.functional.gelu(self.first(inputs))
        return self.second(hidden + hidden * torch.randn_like(hidden))


def train_in_ort(module):
    """The ORTModule of a module that has taken a step, what it trains with, and its plans."""
    model = ORTModule(module)
    model(inputs).sum().backward()
    manager = model._torch_module._execution_manager._training_manager
    return model, manager, detect(manager).space


def forget_a_backward():
    """Puts the two random streams of a recomputed Dropout out of step, as ORT lets a script do."""
    model(inputs)
    return model(inputs)


def check(config, forward):
    """The largest difference of any gradient."""
    with tempfile.TemporaryDirectory() as folder:
        build = functools.partial(rebuild, manager)
        return check_gradients(manager, config, forward=forward, rebuild=lambda each: build(each, Path(folder))).worst


torch.manual_seed(0)
inputs = torch.randn(3, LENGTH, WIDTH)
onnxruntime.set_seed(7)
model, manager, space = train_in_ort(Noisy())
print("noisy", check(Config.of(space.plans), lambda: model(inputs)))

model, manager, space = train_in_ort(Encoder(layers=2, dropout=0.2))
for config in [*(Config.of([plan]) for plan in space.plans), Config.of(space.plans)]:
    described = {"plans": [plan.label for plan in space.plans_of(config)]}
    worst, out_of_step = check(config, lambda: model(inputs)), check(config, forget_a_backward)
    print(json.dumps({**described, "worst": worst, "out_of_step": out_of_step}))
