"""Trains well until memory runs out, where its flags choose."""

import argparse
import contextlib
import itertools
import resource
from pathlib import Path

import torch
from onnxruntime.training.ortmodule import ORTModule

from models import FEATURES, Classifier

TOO_MUCH = 2**50


class Lacking(Classifier):
    """Runs out of memory where it is told to."""

    def forward(self, x):
        scores = super().forward(x)
        if lacks_in("forward") or (lacks_in("large batch") and len(x) > 2):
            lack()
        if lacks_in("backward"):
            scores.register_hook(lack)
        return scores


class LackingSGD(torch.optim.SGD):
    def step(self, closure=None):
        if lacks_in("optimizer"):
            lack()
        return super().step(closure)


def lacks_in(place):
    return args.fault == place and step >= args.at_step


def lack(*_):
    torch.empty(TOO_MUCH)


def exhaust():
    inputs = torch.randn(2**18, FEATURES)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20,) * 2)
    model(inputs)


parser = argparse.ArgumentParser()
parser.add_argument("--fault", help="where no memory is left: exhaust, forward, backward, optimizer or large batch")
parser.add_argument("--at-step", type=int, default=1)
parser.add_argument("--goes-on", action="store_true", help="after whatever a step raises")
parser.add_argument("--scripted", action="store_true", help="a model that cannot be recomputed")
parser.add_argument("--bs", type=int, default=4)
args = parser.parse_args()

model = ORTModule(torch.jit.script(torch.nn.Linear(FEATURES, FEATURES)) if args.scripted else Lacking())
optimizer = LackingSGD(model.parameters(), lr=0.01)
for step in itertools.count(1):
    with contextlib.suppress(Exception) if args.goes_on else contextlib.nullcontext():
        if step == args.at_step and args.fault == "exhaust":
            exhaust()
        loss = model(torch.randn(args.bs, FEATURES)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
