"""Comes to grief while ORT exports the model, after a few words, in the way that its flag chooses."""

import argparse
import os
import signal
import time
from pathlib import Path

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

from models import FEATURES, Classifier


def wait():
    while not Path("go").exists():
        time.sleep(0.1)


FAULTS = {"segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV), "breakpoint": breakpoint, "wait": wait}

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=FAULTS, required=True)
args = parser.parse_args()


class Faulty(nn.Module):
    """A classifier with a fault that only an export meets."""

    def __init__(self):
        super().__init__()
        self.inner = Classifier()

    def forward(self, x):
        if torch.onnx.is_in_onnx_export():
            os.write(2, b"last words\n")
            FAULTS[args.fault]()
        return self.inner(x)


model = ORTModule(Faulty())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    model(torch.randn(4, FEATURES)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
