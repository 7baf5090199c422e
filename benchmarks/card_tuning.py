"""The answers of whole tunings on a card beside the best that people do by hand: ``make bench-card``.

Two studies train in bfloat16 at sizes that a card is bought for. By hand means: no recompute, the first k blocks for
every k, and the same with matrix products kept. Each is measured without a limit, so this hand knows all peaks and
times. At each of several limits between the least peak and that without recompute, ``autorecompute tune`` runs as a
user would run it, with the limit enforced. Its answer, the best by hand and all blocks are then measured in mirrored
rounds in one process. Peaks are what the allocator has reserved; times are wall time. Arguments name studies.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from by_hand import STUDIES, told_ratio

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import format_bytes

SIZES = {
    "llama_clm": "--layers 12 --hidden 1024 --heads 16 --key-value-heads 4 --sequence 1024 --autocast",
    "gpt2_clm": "--layers 12 --hidden 1024 --heads 16 --sequence 1024 --autocast",
}
TARGET_BATCH = 16
LIMITS = (0.30, 0.65)
"""Shares of the way from the least peak by hand to that without recompute."""

ONCE = Effort(warmup=2, steps=8)
ROUNDS = 4
TIMEOUT = "150s"
"""What a tuning may take."""


def by_hand(bench):
    """Each config that people try with its measurement."""
    space = bench.detect().space
    plans = {
        plan
        for name in ("blocks", "keep_matmul")
        if name in space.presets
        for plan in space.plans_of(space.presets[name])
    }
    counts = [Config(frozenset(plan.chosen(k))) for plan in plans for k in range(1, plan.occurrences + 1)]
    configs = dict.fromkeys([Config(), *counts, space.presets["blocks"]])
    return {config: bench.measure(config, ONCE) for config in configs}


def tune(script, arguments, limit_bytes):
    """The tuning's JSON, what it said, and the seconds that it took."""
    command = [sys.executable, "-m", "autorecompute", "tune", str(script), "--target-batch", str(TARGET_BATCH)]
    options = ["--memory-limit", str(limit_bytes), "--timeout", TIMEOUT, "--fresh", "--json", "--", *arguments]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([*command, *options], cwd=folder, capture_output=True, text=True, check=False)
    return json.loads(done.stdout or "{}"), done.stderr, time.perf_counter() - began


def race(bench, configs, rounds=ROUNDS, effort=ONCE):
    """Logarithms of the seconds of a step of each config, a median for each round."""
    found = {config: [] for config in configs}
    for number in range(rounds):
        for config in configs if number % 2 else reversed(configs):
            found[config].append(math.log(bench.measure(config, effort).median_step_seconds))
    return found


def compare(job, space, tried, limit_bytes):
    """Prints what came of one limit. While a tuning runs, no process of this one is on the card."""
    fitting = {config: found for config, found in tried.items() if found.under(limit_bytes).outcome is Outcome.OK}
    best = min(fitting, key=lambda config: fitting[config].median_step_seconds)
    told, said, seconds = tune(job.script, job.arguments, limit_bytes)
    answer = (told.get("result") or told).get("best")
    print(
        f"limit {format_bytes(limit_bytes)}: by hand {space.describe(best)}, {format_bytes(fitting[best].peak_bytes)}"
    )
    if answer is None:
        print("  no answer; the tuning said:\n" + said)
        return
    print(said)
    config = Config.parse(answer["config"])
    blocks = space.presets["blocks"]
    with tempfile.TemporaryDirectory() as logs, Bench(job, TARGET_BATCH, Path(logs)) as bench:
        times = race(bench, list(dict.fromkeys([config, best, blocks])))
    print(f"  answer {', '.join(answer['config'])}, {format_bytes(answer['peak_bytes'])}, in {seconds:.0f} s")
    for name, other in (("the best by hand", best), ("all blocks", blocks)):
        ratio = told_ratio([b - a for a, b in zip(times[config], times[other], strict=True)])
        print(f"  samples/s of the answer over those of {name}: {ratio}")


def main(names):
    """All studies, or those that are named."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device, and this measures one"
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, batch {TARGET_BATCH}")
    for name in names or SIZES:
        script, arguments = STUDIES / name / "train.py", tuple(SIZES[name].split())
        print(f"\n{name} {SIZES[name]}", flush=True)
        job = Job(script=script, arguments=arguments, backend="torch")
        with tempfile.TemporaryDirectory() as logs, Bench(job, TARGET_BATCH, Path(logs)) as bench:
            space, tried = bench.detect().space, by_hand(bench)
        for config, found in tried.items():
            speed = "-" if found.samples_per_second is None else f"{found.samples_per_second:.1f} samples/s"
            print(f"  {space.describe(config):<60} {format_bytes(found.peak_bytes):>9} {speed}")
        peaks = [found.peak_bytes for found in tried.values() if found.peak_bytes]
        least, most = min(peaks), max(peaks)
        for share in LIMITS:
            compare(job, space, tried, round(least + share * (most - least)))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
