"""What following a training script costs it: ``python tests/hooks_bench.py``.

One training per model, with everything that the worker hooks in switched on in one step and off in the next, in random
order within each pair of steps, so that both see the same weather. The hooks end in the worker's own agent, in the
middle of a window: the meter is asked, the loss is read, and each step is told to another process.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import autorecompute.compat  # noqa: F401  (ORTModule on torch 2.7 and later)
from autorecompute.backends.ortmodule.sessions import OrtModuleBackend
from autorecompute.plans import Config
from autorecompute.tuning.intervals import interval
from autorecompute.worker import hooks
from autorecompute.worker.agent import Agent
from autorecompute.worker.channel import Channel
from autorecompute.worker.protocol import Order, Settings, encode

STUDY = Path(__file__).parents[1] / "studies" / "bert_mlm" / "train.py"
GOAL = 0.01
WARMUP = 5
ENDLESS = Order(config=Config(), warmup=0, steps=10**9)

CONTROLLER = """
import sys
from multiprocessing.connection import Listener

with Listener(sys.argv[1], family="AF_UNIX") as listener:
    print(flush=True)
    worker = listener.accept()
    worker.recv_bytes()
    worker.send_bytes(sys.argv[2].encode())
    try:
        while True:
            worker.recv_bytes()
    except EOFError:
        pass
"""
"""Answers the detection with an order that never ends, and hears all steps."""


class Switch:
    """Turns the worker's hooks on and off between two steps."""

    def __init__(self, address, folder):
        from onnxruntime.training.ortmodule._execution_agent import TrainingAgent
        from onnxruntime.training.ortmodule._training_manager import TrainingManager

        hooked = [
            (TrainingManager, "forward"),
            (TrainingAgent, "run_forward"),
            (TrainingAgent, "run_backward"),
            (torch.Tensor, "backward"),
        ]
        plain = [getattr(owner, name) for owner, name in hooked]
        self.seconds = 0.0
        for owner, name in hooked:
            self._time(owner, name, sign=-1)
        backend = OrtModuleBackend(folder)
        self.agent = Agent(Channel(address), backend, Settings(address=address))
        self.is_on = True
        backend.install(self.agent)
        hooks.follow_losses(self.agent.on_loss)
        hooks.follow_steps(self._on_step, self.agent.on_skip)
        for owner, name in hooked:
            self._time(owner, name, sign=1)
        self._ways = [(*place, was, getattr(*place)) for place, was in zip(hooked, plain, strict=True)]

    def _on_step(self, optimizer):
        if self.is_on:
            began = time.perf_counter()
            self.agent.on_step(optimizer)
            self.seconds += time.perf_counter() - began

    def _time(self, owner, name, sign):
        """Adds or subtracts the time of a call: around the hook it counts, around what is hooked it does not."""
        inner = getattr(owner, name)

        @functools.wraps(inner)
        def call_and_time(*args, **kwargs):
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                self.seconds += sign * (time.perf_counter() - began)

        setattr(owner, name, call_and_time)

    def turn(self, *, on):
        """From the next step on; begins to count the time inside the hooks anew."""
        self.is_on, self.seconds = on, 0.0
        for owner, name, plain, following in self._ways:
            setattr(owner, name, following if on else plain)


def make_tiny():
    """The smallest training there is: its step is hardly more than ORT's own calls."""
    from onnxruntime.training.ortmodule import ORTModule

    sys.path.insert(0, str(Path(__file__).with_name("scripts")))
    from models import CLASSES, FEATURES, Classifier

    model = ORTModule(Classifier())
    inputs, labels = torch.randn(32, FEATURES), torch.randint(CLASSES, (32,))
    return model, lambda: torch.nn.functional.cross_entropy(model(inputs), labels)


def make_bert():
    """The study's training at its usual batch."""
    from onnxruntime.training.ortmodule import ORTModule

    study = runpy.run_path(str(STUDY), run_name="study")
    args = argparse.Namespace(hidden=128, layers=4, heads=4, sequence=128)
    model = ORTModule(study["make_model"](args).train())
    samples = study["MaskedByteWindows"](args.sequence, count=32, seed=0)
    batch = torch.utils.data.default_collate([samples[index] for index in range(32)])
    return model, lambda: model(**batch).loss


MODELS = {"tiny": (make_tiny, 500), "bert": (make_bert, 20)}


def measure(switch, make, pairs):
    """Seconds of steps with and without hooks and of the hooks alone, pair by pair."""
    model, forward = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(WARMUP):
        time_step(forward, optimizer)
    chance, measured, inside = random.Random(0), [], 0.0
    for _ in range(pairs):
        seconds = {}
        for on in chance.sample([True, False], 2):
            switch.turn(on=on)
            seconds[on] = time_step(forward, optimizer)
            inside = switch.seconds if on else inside
        measured.append((seconds[True], seconds[False], inside))
    return measured


def time_step(forward, optimizer):
    """Seconds of one step."""
    began = time.perf_counter()
    forward().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - began


def describe(name, measured):
    """A line: the step without hooks, the time inside them, and how much longer a step with them takes."""
    step = statistics.median(without for _, without, _ in measured)
    inside = statistics.median(seconds for _, _, seconds in measured)
    logs = [math.log(following / without) for following, without, _ in measured]
    # The interval of many pairs takes pairs of pairs: some hundreds say as much.
    share = interval(logs[:: max(1, len(logs) // 300)], 0.025)
    low, high = (math.expm1(end) for end in (share.low, share.high))
    return (
        f"{name}: step {step * 1e3:.2f} ms, inside hooks {inside * 1e6:.0f} us, {inside / step:.2%} of a step; "
        f"with hooks a step takes {math.expm1(share.middle):+.1%} (95 %: {low:+.1%} to {high:+.1%})"
    )


def main():
    """Prints a line for the model, or one for each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, help="only this one")
    args = parser.parse_args()
    if args.model is None:
        for name in MODELS:
            subprocess.run([sys.executable, __file__, "--model", name], check=True)
        print(f"goal: at most {GOAL:.0%} of a step that is worth tuning")
        return
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        address = f"{folder}/socket"
        command = [sys.executable, "-c", CONTROLLER, address, encode(ENDLESS).decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
            controller.stdout.readline()
            try:
                measured = measure(Switch(address, Path(folder)), *MODELS[args.model])
            finally:
                controller.terminate()
    print(describe(args.model, measured), flush=True)


if __name__ == "__main__":
    main()
