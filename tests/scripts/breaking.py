"""Trains well until a fault comes, which its flags choose."""

import argparse
import contextlib
import itertools
import resource
from pathlib import Path

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


def leave_no_memory():
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20,) * 2)


def exhaust():
    inputs = torch.randn(2**18, FEATURES)
    leave_no_memory()
    model(inputs)


FAULTS = {
    "raise": fail,
    "exhaust": exhaust,
    "shrink": lambda: batches.append(3),
    "diverge": diverge,
}

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=FAULTS, required=True)
parser.add_argument("--at-step", type=int, default=1)
parser.add_argument("--goes-on", action="store_true", help="after whatever a step raises")
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = [4]
for step in itertools.count(1):
    with contextlib.suppress(Exception) if args.goes_on else contextlib.nullcontext():
        if step == args.at_step:
            FAULTS[args.fault]()
        loss = model(torch.randn(batches[-1], FEATURES)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
