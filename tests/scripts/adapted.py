"""Trains without the tuner, on whatever PyTorch is installed."""

import importlib
import io

import torch


def describe_export():
    """What comes of the script's own export, as it is or would be made at the end of a training."""
    try:
        return type(torch.onnx.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),), io.BytesIO())).__name__
    except Exception as error:  # noqa: BLE001  (whatever it is, it has to be the same)
        return f"{type(error).__name__} {error}"


export, exported = torch.onnx.export, describe_export()

import autorecompute.compat  # noqa: E402

first = autorecompute.compat.REPAIRS
second = importlib.reload(autorecompute.compat).REPAIRS

from onnxruntime.training.ortmodule import ORTModule  # noqa: E402

from models import FEATURES, Classifier  # noqa: E402

model = ORTModule(Classifier())
before = model.get_parameter("layers.0.weight").detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.ones(4, FEATURES)).square().mean().backward()
optimizer.step()
print(f"first: {list(first)}")
print(f"second: {list(second)}")
print(f"export is torch's own: {torch.onnx.export is export}")
print(f"weights moved: {not torch.equal(before, model.get_parameter('layers.0.weight'))}")
print(f"own export is as ever: {describe_export() == exported}")
