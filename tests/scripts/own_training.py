"""Trains, in plain PyTorch, a transformer to its own end, and prints all that a tuning in its steps could change."""

import argparse
import functools
import hashlib
import logging
import os
import resource
import signal
import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from models import CLASSES, LENGTH, WIDTH, Block, Encoder

BATCH = 96

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--models", type=int, default=1)
parser.add_argument("--scheduled", type=int, help="steps that the scheduler is made for")
parser.add_argument("--leaves", action="store_true", help="the model leaves torch in every call")
parser.add_argument("--again", choices=["wrong", "raises"], help="what blocks do when they are run again")
parser.add_argument("--lacks", type=int, help="the step in which no memory is left")
parser.add_argument("--handles", action="store_true", help="ends by its own handlers")
parser.add_argument("--code", type=int, default=0)
parser.add_argument("--grows", type=int, help="the step from which on batches are half as large again")
parser.add_argument("--auto", metavar="LIMIT", help="calls autorecompute.auto, and logs what it says")
parser.add_argument("--study", help="the study that it is told")
parser.add_argument("--tuning-steps", type=int, default=36)
parser.add_argument("--beside", action="store_true", help="another optimizer steps that it is not told of")
args = parser.parse_args()


class Leaving(Encoder):
    """Leaves torch in each call, where no fake tensor can follow."""

    def forward(self, x):
        return super().forward(x + torch.from_numpy(0 * x.numpy()))


class Unsteady(Block):
    """Does something else when it is run again in the backward pass."""

    def forward(self, x):
        is_again = torch._C._current_graph_task_id() != -1
        if is_again and args.again == "raises" and type(x) is torch.Tensor:
            raise KeyError("the second run of this block")
        return super().forward(x * (3 if is_again else 2))


def stop(number, _frame):
    """The script's own end at a signal."""
    print("stopped by", signal.Signals(number).name, flush=True)
    sys.exit(9)


if args.handles:
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)

torch.manual_seed(0)
kind = Leaving if args.leaves else functools.partial(Encoder, block=Unsteady) if args.again else Encoder
models = nn.ModuleList(kind(dropout=args.dropout, layers=3 - place) for place in range(args.models))
optimizer = torch.optim.AdamW(models.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, args.scheduled) if args.scheduled else None
critic = nn.Linear(WIDTH, 1)
beside = torch.optim.SGD(critic.parameters(), lr=0.1) if args.beside else None
if args.auto is not None:
    import autorecompute

    logging.basicConfig(level=logging.INFO, format="autorecompute: %(levelname)s %(message)s")
    autorecompute.auto(models[0], optimizer, memory_limit=args.auto, study=args.study, tuning_steps=args.tuning_steps)
print("settings", sorted(name for name in os.environ if name.startswith("AUTORECOMPUTE")))
for step in range(1, args.steps + 1):
    for _ in range(args.accumulate):
        size = BATCH + BATCH // 2 if args.grows is not None and step >= args.grows else BATCH
        inputs, labels = torch.randn(size, LENGTH, WIDTH), torch.randint(CLASSES, (size,))
        loss = sum(cross_entropy(model(inputs), labels) for model in models) / args.accumulate
        if step == args.lacks:
            resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))
            torch.empty(1 << 26)  # oneDNN, in the backward pass, may say something else than that memory is lacking
        loss.backward()
    if beside is not None:
        critic(inputs).mean().backward()
        beside.step()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.item(), flush=True)
digest = hashlib.sha256()
for parameter in models.parameters():
    digest.update(parameter.detach().numpy().tobytes())
print("weights", digest.hexdigest(), "next", torch.rand(1).item())
sys.exit(args.code)
