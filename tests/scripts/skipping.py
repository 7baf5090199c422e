"""Trains in plain PyTorch and goes on after whatever a step raises, as loops do that are not to end over one batch."""

import argparse
import itertools

import torch

from models import LENGTH, WIDTH, Encoder

TOO_MUCH = 2**50


class Lacking(Encoder):
    """Runs out of memory where it is told to."""

    def forward(self, x):
        scores = super().forward(x)
        if args.at == "forward" and step >= args.step:
            torch.empty(TOO_MUCH)
        if args.at == "backward" and step >= args.step:
            scores.register_hook(lambda _: torch.empty(TOO_MUCH))
        return scores


class LackingSGD(torch.optim.SGD):
    """Runs out of memory where it is told to."""

    def step(self, closure=None):
        if args.at == "optimizer" and step >= args.step:
            torch.empty(TOO_MUCH)
        return super().step(closure)


parser = argparse.ArgumentParser()
parser.add_argument("--at", default="", choices=["", "forward", "backward", "optimizer"])
parser.add_argument("--step", type=int, default=0, help="the first one without memory")
parser.add_argument("--scripted", action="store_true", help="a model that cannot be recomputed")
args = parser.parse_args()
model = torch.jit.script(torch.nn.Linear(WIDTH, WIDTH)) if args.scripted else Lacking()
optimizer = LackingSGD(model.parameters(), lr=0.01)
for step in itertools.count(1):
    optimizer.zero_grad()
    try:
        model(torch.randn(8, LENGTH, WIDTH)).square().mean().backward()
        optimizer.step()
    except Exception as error:  # noqa: BLE001  (this is what such loops do)
        print("step", step, "is left out:", error)
