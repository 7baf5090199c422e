"""What a training pays for being tuned while it trains, beside slower steps of trials: ``make bench-own-cost``.

The GPT-2 and the Llama of ``torch_overheads.py`` call ``autorecompute.auto`` with a limit that everything holds. So the
search tries nothing but the training as it is, and all that it takes is its own. Each figure is processor time:

* a step after the search, with the hooks on torch in one and off in the next, in pairs that are mirrored. Hooks
  add the same to any step, and the noise of a step grows with its length: so they are measured on steps of one short
  text, and held against the usual one;
* the steps up to the search's end, less what as many plain ones take: the model on fake tensors, and the meters;
* the search's own process, which runs beside the training at a low priority.

The sum is held against a training of 2,000 steps, of which 100 may be trials.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
from pathlib import Path

import psutil
import torch
import transformers
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch_overheads import MISS, MODELS, Training

import autorecompute
from autorecompute.tuning.intervals import interval

GOAL = 0.01
WARMUP, PLAIN, SEARCHED = 3, 10, 14
SHORT = 8
"""Tokens of a short text."""

STEPS = 2000
ENDED = "samples/s"
"""What the line at the end of a search has in it."""


class Hooks:
    """All that the tool has put on torch, off and on again."""

    def __init__(self):
        self._points = [
            (torch.nn.Module, "__call__"),
            (torch.Tensor, "backward"),
            (torch.optim.Optimizer, "add_param_group"),
        ]
        self._before, self._hooks_before = self._now(), dict(_global_optimizer_post_hooks)

    def _now(self):
        return [getattr(*point) for point in self._points]

    def note(self):
        """These are the hooks."""
        self._after, self._hooks_after = self._now(), dict(_global_optimizer_post_hooks)

    def turn(self, *, on):
        """From the next step on."""
        for (owner, name), function in zip(self._points, self._after if on else self._before, strict=True):
            setattr(owner, name, function)
        _global_optimizer_post_hooks.clear()
        _global_optimizer_post_hooks.update(self._hooks_after if on else self._hooks_before)


class Heard(logging.Handler):
    """What the tool has said."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        """Keeps it."""
        self.lines.append(record.getMessage())


def listen():
    """One thread and no words of transformers from now on, and all that the tool says."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    heard, log = Heard(), logging.getLogger("autorecompute")
    log.addHandler(heard)
    log.setLevel(logging.INFO)
    return heard


def find_search():
    """The process of the search."""
    here = str(Path.cwd())
    for one in psutil.process_iter(["cmdline", "cwd"]):
        if "training_search" in " ".join(one.info["cmdline"] or ()) and one.info["cwd"] == here:
            return one
    raise LookupError("the search has not begun")


def seconds_of(process, last):
    """Processor seconds of a process, or the last that was known."""
    try:
        times = process.cpu_times()
    except psutil.Error:
        return last
    return (times.user + times.system) or last  # a process that nobody waits for has none


def search(training, heard):
    """Processor seconds of the steps of a search in this process and in its own; steps stop where it has ended."""
    autorecompute.auto(training.model, training.optimizer, memory_limit="1000GiB")
    process, beside, here = find_search(), 0.0, []
    while len(here) < SEARCHED or not any(ENDED in line for line in heard.lines):
        here.append(training.step())
        beside = seconds_of(process, beside)
    return here, beside


def compare(training, hooks, rounds):
    """Seconds that hooks add to a step, one for each round of mirrored pairs."""
    training.batch = {name: tokens[:1, :SHORT] for name, tokens in training.batch.items()}
    added = []
    for _ in range(rounds):
        seconds = {True: 0.0, False: 0.0}
        for on in (True, False, False, True):
            hooks.turn(on=on)
            seconds[on] += training.step()
        added.append((seconds[True] - seconds[False]) / 2)
    return added


def report(name, value, goal=None):
    """Prints a share, beside its goal where it has one."""
    judged = "" if goal is None else f"   goal {goal:.1%}   {'met' if value <= goal else 'MISSED'}"
    print(f"{name:58} {value:+8.2%}{judged}", flush=True)


def measure(name, make, rounds, heard):
    """Prints all figures of one model."""
    torch.manual_seed(0)
    training, hooks = Training(make()), Hooks()
    step = statistics.median([training.step() for _ in range(WARMUP + PLAIN)][WARMUP:])
    heard.lines.clear()
    here, beside = search(training, heard)
    hooks.note()
    own = sum(here) - len(here) * step
    print(f"{name}: a step takes {step:.3f} s, the search {own:.2f} s here and {beside:.2f} s in its own process")
    found = interval(compare(training, hooks, rounds), MISS)
    after = found.middle / step
    print(f"hooks add {1e3 * found.middle:+.3f} ms to a step ({1e3 * found.low:+.3f} to {1e3 * found.high:+.3f})")
    report("a step after the search, beside a plain one", after, GOAL)
    report(f"the search in this process, of {STEPS} steps", own / (STEPS * step))
    report(f"with the search's own process, of {STEPS} steps", (own + beside) / (STEPS * step))
    report(f"all of it, of {STEPS} steps", after + (own + beside) / (STEPS * step), GOAL)


def main():
    """Measures each model in a folder that is thrown away."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=150, help="mirrored pairs of steps")
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help="all where none is named")
    args = parser.parse_args()
    heard = listen()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in args.models:
            measure(name, MODELS[name], args.rounds, heard)


if __name__ == "__main__":
    main()
