"""Compares the gradients of each config of a transformer with Dropout, and those of masks that were put out of step."""

import functools
import json
import tempfile
from pathlib import Path

import torch
from autorecompute.backends.ortmodule.detection import detect
from autorecompute.backends.ortmodule.gradient_check import check_gradients
from autorecompute.backends.ortmodule.sessions import rebuild
from autorecompute.plans import Config
from onnxruntime.training.ortmodule import ORTModule

from models import LENGTH, WIDTH, Encoder

torch.manual_seed(0)
model = ORTModule(Encoder(layers=2, dropout=0.2))
inputs = torch.randn(3, LENGTH, WIDTH)
model(inputs).sum().backward()
manager = model._torch_module._execution_manager._training_manager
space = detect(manager).space


def forget_a_backward():
    """Puts the two random streams of a recomputed Dropout out of step, as ORT lets a script do."""
    model(inputs)
    return model(inputs)


with tempfile.TemporaryDirectory() as folder:
    check = functools.partial(check_gradients, manager, rebuild=lambda config: rebuild(manager, config, Path(folder)))
    for config in [*(Config.of([plan]) for plan in space.plans), Config.of(space.plans)]:
        described = {"plans": [plan.label for plan in space.plans_of(config)]}
        worst = check(config, forward=lambda: model(inputs)).worst
        out_of_step = check(config, forward=forget_a_backward).worst
        print(json.dumps({**described, "worst": worst, "out_of_step": out_of_step}))
