"""Trains well until a fault comes, which its flags choose."""

import argparse
import itertools
import os
import signal

import torch
from onnxruntime.training.ortmodule import ORTModule

from models import FEATURES, Classifier


class UnreadableSampleError(Exception):
    pass


def fail():
    raise UnreadableSampleError("sample 17 cannot be read")


def diverge():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))


FAULTS = {
    "raise": fail,
    "exit": lambda: os._exit(3),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "diverge": diverge,
    "hang": signal.pause,
}

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=FAULTS, required=True)
parser.add_argument("--at-step", type=int, default=1)
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in itertools.count(1):
    loss = model(torch.randn(4, FEATURES)).square().mean()
    if step == args.at_step:
        print("step", step, "breaks")
        FAULTS[args.fault]()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
