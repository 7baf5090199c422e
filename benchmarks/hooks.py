"""What following a training script costs it: ``python benchmarks/hooks.py``, some four minutes.

One training per model, with everything that the worker hooks in switched on in one step and off in the next, in random
order within each pair of steps, so that both see the same weather. The hooks end in the worker's own agent, in the
middle of a window: the meter is asked, the loss is read, and each step is told to another process.

Hooks add the same time to any step, but the noise of a step grows with its length: what they add is measured on the
same model with a small batch, and held against the fastest step at the usual one. The time inside them, taken at both,
shows that it is the same. Processor time is counted beside wall time, in a training of one thread: on a crowded machine
others disturb it less, and hooks that wait would show in the time inside them.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnxruntime
import torch

import autorecompute.compat  # noqa: F401  (ORTModule on torch 2.7 and later)
from autorecompute.backends.ortmodule.worker import OrtModuleBackend
from autorecompute.plans import Config
from autorecompute.tuning.intervals import interval
from autorecompute.worker import hooks
from autorecompute.worker.agent import Agent
from autorecompute.worker.protocol import Channel, Order, Settings, encode

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "bert_mlm" / "train.py"
SCRIPTS = ROOT / "tests" / "scripts"
GOAL = 0.01
WARMUP = 5
MOST_VALUES = 300
CLOCKS = ("wall", "processor")
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
        hooks.follow_losses(self.agent.on_loss, self.agent.on_failure)
        hooks.follow_steps(self._on_step, self.agent.on_skip, self.agent.on_failure)
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


def make_tiny(batch):
    """The smallest training there is: its step is hardly more than ORT's own calls."""
    from onnxruntime.training.ortmodule import ORTModule

    sys.path.insert(0, str(SCRIPTS))
    from models import CLASSES, FEATURES, Classifier

    model = ORTModule(Classifier())
    inputs, labels = torch.randn(batch, FEATURES), torch.randint(CLASSES, (batch,))
    return model, lambda: torch.nn.functional.cross_entropy(model(inputs), labels)


def make_bert(batch):
    """The study's training."""
    from onnxruntime.training.ortmodule import ORTModule

    study = runpy.run_path(str(STUDY), run_name="study")
    args = argparse.Namespace(hidden=128, layers=4, heads=4, sequence=128)
    model = ORTModule(study["make_model"](args).train())
    samples = study["MaskedByteWindows"](args.sequence, count=batch, seed=0)
    inputs = torch.utils.data.default_collate([samples[index] for index in range(batch)])
    return model, lambda: model(**inputs).loss


@dataclass(frozen=True)
class Training:
    """What is measured.

    Attributes:
        make: Makes the model and its forward at a batch.
        batch: That batch.
        seconds: For how long.
        is_alone: Whether one thread computes: the others of a crowded machine make two wait for each other.
    """

    make: Callable
    batch: int
    seconds: float
    is_alone: bool = False


SMALL, USUAL = "BERT, small batch", "BERT, usual batch"
TRAININGS = {
    "two linear layers": Training(make_tiny, batch=32, seconds=15, is_alone=True),
    SMALL: Training(make_bert, batch=2, seconds=120, is_alone=True),
    USUAL: Training(make_bert, batch=32, seconds=40),
}


def measure(switch, training):
    """Pairs of steps, with and without hooks: each as ``time_step`` gives it."""
    if training.is_alone:
        use_one_thread()
    model, forward = training.make(training.batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(WARMUP):
        time_step(switch, forward, optimizer)
    chance, measured = random.Random(0), []
    end = time.monotonic() + training.seconds
    while time.monotonic() < end:
        pair = {}
        for on in chance.sample([True, False], 2):
            switch.turn(on=on)
            pair[on] = time_step(switch, forward, optimizer)
        measured.append((pair[True], pair[False]))
    return measured


def use_one_thread():
    """Has torch and every session made from now on compute in one thread."""
    make = onnxruntime.SessionOptions

    def make_for_one_thread():
        options = make()
        options.intra_op_num_threads = 1
        return options

    torch.set_num_threads(1)
    onnxruntime.SessionOptions = make_for_one_thread


def time_step(switch, forward, optimizer):
    """Wall seconds of one step, its processor seconds, and wall seconds inside hooks."""
    began, began_cpu = time.perf_counter(), time.process_time()
    forward().backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - began, time.process_time() - began_cpu, switch.seconds


def summarize(measured):
    """Seconds of a step without hooks and inside them, and what they add to a step, by each clock."""
    return {
        "pairs": len(measured),
        "step": statistics.median(off[0] for _, off in measured),
        "fastest": min(off[0] for _, off in measured),
        "inside": statistics.median(on[2] for on, _ in measured),
        "wall": find_added([on[0] - off[0] for on, off in measured]),
        "processor": find_added([on[1] - off[1] for on, off in measured]),
    }


def find_added(differences):
    """The centre of the differences, and the ends of its 95 % interval."""
    # Intervals are made of some hundred values at most: neighbours are told by their median.
    size = -(-len(differences) // MOST_VALUES)
    found = interval([statistics.median(block) for block in batched(differences, size)], 0.025)
    return found.middle, found.low, found.high


def batched(values, size):
    """Neighbours in blocks of a size; the last one may be shorter."""
    return [values[start : start + size] for start in range(0, len(values), size)]


def describe(added, step):
    """What the hooks add, in milliseconds and as a share of a step that takes so long."""
    middle, low, high = (f"{1e3 * seconds:+.2f}" for seconds in added)
    share, least, most = (f"{seconds / step:+.2%}" for seconds in added)
    return f"{middle} ms ({low} to {high}), {share} ({least} to {most})"


def run_alone(name):
    """Measures one training in this process and prints its figures for the one that asked."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        address = f"{folder}/socket"
        command = [sys.executable, "-c", CONTROLLER, address, encode(ENDLESS).decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
            controller.stdout.readline()
            try:
                measured = measure(Switch(address, Path(folder)), TRAININGS[name])
            finally:
                controller.terminate()
    print(json.dumps(summarize(measured)), flush=True)


def main():
    """Prints a line for each training, measured in a process of its own, and what that means for the usual step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--training", choices=TRAININGS, help="measure only this one, and print its figures as JSON")
    args = parser.parse_args()
    if args.training is not None:
        run_alone(args.training)
        return
    figures = {}
    for name in TRAININGS:
        command = [sys.executable, __file__, "--training", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        figures[name] = found = json.loads(done.stdout.splitlines()[-1])
        step = found["step"]
        print(f"{name}: step {1e3 * step:.2f} ms, inside hooks {1e3 * found['inside']:.3f} ms, {found['pairs']} pairs")
        for clock in CLOCKS:
            print(f"  hooks add, {clock} time: {describe(found[clock], step)}", flush=True)
    fastest = figures[USUAL]["fastest"]
    print(f"beside the fastest step at the usual batch, {1e3 * fastest:.2f} ms (goal: at most {GOAL:.0%}):")
    for clock in CLOCKS:
        print(f"  hooks add, {clock} time: {describe(figures[SMALL][clock], fastest)}")


if __name__ == "__main__":
    main()
