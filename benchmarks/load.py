"""What other work on the machine makes of relative figures: ``python benchmarks/load.py``, some ten minutes.

A script is trained on a worker as a tuning does it, and two configs take turns: none and a preset, in windows of as
many steps as a trial has. This benchmark makes the load itself: processes that do nothing but compute come and go. The
table has the ratios that single pairs of windows give by wall time, which was told before, as they are told now, by
processor time where others disturbed the pair, and by processor time throughout. The median by wall time without our
load is taken for the true ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from autorecompute.figures import comparable_steps
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests" / "scripts" / "plain_transformer.py"
REFERENCE, TRIAL = Effort(warmup=1, steps=3), Effort(warmup=2, steps=5)
COMPUTE = "import os, sys\nwhile os.path.exists(sys.argv[1]): pass"
"""Until this benchmark is gone, however it went."""

START = """import subprocess, sys
print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""
"""Starts a command and ends: what is a child of the benchmark would count as the tuning's own work. In a session of its
own it does not share the processors with the training as one group."""

SECONDS = 1.0
"""What a number of processes stays for in the mean; a pair of windows takes about as long."""


class Load:
    """Processes that come and go: none to as many as there are cores, each number of them for a second or so."""

    def __init__(self, seed):
        self.chance, self.is_over = random.Random(seed), threading.Event()
        self.busy = []

    def run(self):
        """Lets them come and go until it is over: every number once in a random order, then all again."""
        numbers = []
        while not self.is_over.is_set():
            numbers = numbers or self.chance.sample(every := range(len(os.sched_getaffinity(0)) + 1), len(every))
            self.set(numbers.pop())
            self.is_over.wait(self.chance.expovariate(1 / SECONDS))
        self.set(0)

    def set(self, count):
        """Has so many of them at work."""
        while len(self.busy) > count:
            os.kill(self.busy.pop(), signal.SIGKILL)
        while len(self.busy) < count:
            command = [sys.executable, "-c", START, sys.executable, "-c", COMPUTE, f"/proc/{os.getpid()}"]
            started = subprocess.run(command, check=True, capture_output=True, text=True)
            self.busy.append(int(started.stdout))

    @contextlib.contextmanager
    def switched(self, *, on):
        """Comes and goes during the block."""
        thread = threading.Thread(target=self.run)
        if on:
            thread.start()
        try:
            yield
        finally:
            self.is_over.set()
            if on:
                thread.join()


def measure_pairs(bench, config, count):
    """Pairs of measurements, none and the config, in alternating order."""
    pairs = []
    for number in range(count):
        order = [(Config(), REFERENCE), (config, TRIAL)]
        measured = {each: bench.measure(each, effort) for each, effort in (order if number % 2 else order[::-1])}
        pairs.append((measured[Config()], measured[config]))
    return pairs


def ratios(pairs):
    """Throughput relative to none: by wall time, as told, and by processor time."""
    wall = [none.median_step_seconds / other.median_step_seconds for none, other in pairs]
    told = [first / second for first, second in map(comparable_steps, pairs)]
    cpu = [none.median_cpu_seconds / other.median_cpu_seconds for none, other in pairs]
    return {"wall time": wall, "as told now": told, "processor time": cpu}


def describe(name, values, truth):
    """A line of the table."""
    values = sorted(values)
    edge = len(values) // 10
    errors = [abs(value / truth - 1) for value in values]
    print(
        f"{name:<26} {statistics.median(values):>7.2f} {values[edge]:>9.2f} to {values[-1 - edge]:.2f}"
        f" {values[0]:>9.2f} to {values[-1]:.2f} {statistics.median(errors):>11.0%} {max(errors):>6.0%}",
        flush=True,
    )


def main():
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", nargs="?", type=Path, default=SCRIPT, help="training script (default: a transformer)")
    parser.add_argument("--batch", type=int, default=8, help="target batch (default 8)")
    parser.add_argument("--backend", default="torch", help="training system (default torch)")
    parser.add_argument("--preset", default="blocks", help="the config beside none (default blocks)")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of windows with and without load (default 30)")
    parser.add_argument("arguments", nargs="*", help="arguments of the script, after --")
    args = parser.parse_args()
    job = Job(script=args.script, arguments=tuple(args.arguments), backend=args.backend)
    with tempfile.TemporaryDirectory() as folder, Bench(job, args.batch, Path(folder)) as bench:
        config = bench.detect().space.presets[args.preset]
        found = {}
        measure_pairs(bench, config, 1)
        for on in (False, True):
            with Load(seed=1).switched(on=on):
                found[on] = measure_pairs(bench, config, args.pairs)
    truth = statistics.median(ratios(found[False])["wall time"])
    print(
        f"{args.pairs} pairs of windows; throughput of '{args.preset}' relative to none, {truth:.2f} without our load"
    )
    print(f"{'':<26} {'median':>7} {'8 in 10':>17} {'all':>17} {'error: median':>12} {'worst':>6}")
    for on, pairs in found.items():
        shares = [max(one.others_share or 0.0 for one in pair) for pair in pairs]
        disturbed = sum(any(one.is_disturbed for one in pair) for pair in pairs)
        print(
            f"{'with' if on else 'without'} our load: others had {statistics.median(shares):.0%} of the cores, "
            f"{disturbed} of {len(pairs)} pairs disturbed"
        )
        for name, values in ratios(pairs).items():
            describe(f"  {name}", values, truth)


if __name__ == "__main__":
    main()
