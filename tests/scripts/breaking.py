"""Trains well until a fault comes, which its flags choose."""

import argparse
import contextlib
import itertools
import os
import resource
import signal
import time
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


def exhaust_torch():
    leave_no_memory()
    torch.empty(2**30)


def exhaust_ort():
    inputs = torch.randn(2**18, FEATURES)
    leave_no_memory()
    model(inputs)


def exhaust_kernel():
    # No more than a host can bear that did not put this process under a limit.
    hoard = [b"\1" * 2**26 for _ in range(32)]
    print("has", len(hoard), "pieces and lives")


FAULTS = {
    "raise": fail,
    "exhaust-torch": exhaust_torch,
    "exhaust-ort": exhaust_ort,
    "exhaust-kernel": exhaust_kernel,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "shrink": lambda: batches.__setitem__(slice(None), [3]),
    "crawl": lambda: (batches.__setitem__(slice(0, 0), [3] * 12), pauses.append(4.0)),
    "exit": lambda: os._exit(3),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "diverge": diverge,
    "hang": signal.pause,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}

parser = argparse.ArgumentParser()
parser.add_argument("--fault", choices=FAULTS, required=True)
parser.add_argument("--at-step", type=int, default=1)
parser.add_argument("--goes-on", action="store_true", help="after whatever a step raises")
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches, pauses = [4], [0.0]
for step in itertools.count(1):
    time.sleep(pauses[-1])
    with contextlib.suppress(Exception) if args.goes_on else contextlib.nullcontext():
        loss = model(torch.randn(batches[step % len(batches)], FEATURES)).square().mean()
        if step == args.at_step:
            print("step", step, "breaks")
            FAULTS[args.fault]()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
