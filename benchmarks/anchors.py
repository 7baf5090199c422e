"""What recompute buys on every study, in the terms of other systems' figures: ``make bench-anchors``.

A study gets the memory that a batch takes without recompute, and is tuned to train twice the batch in it. Two figures
come of it, both relative to the same reference in the same minutes: the throughput of the answer beside training the
doubled batch without recompute and without a limit (selective recompute elsewhere keeps 93 % of it), and beside
recomputing everything (16 % more elsewhere). Arguments name studies and leave out the rest.

In plain PyTorch memory is that of live tensors, everything is all blocks, and the answer, all blocks and none train in
turns, in processor time. An ORTModule (``--ortmodule``) is tuned as users do it, and memory is that of whole processes:
everything is then the fastest of ORT's levels and all plans. Those processes hand freed memory back at once, as they
would on a card: glibc raises the size from which it does so while a model is exported, and what it keeps of the export
then counts beside the training, more or less of it by chance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from by_hand import NAMES, Hand, beside
from rich.console import Console
from rich.table import Table

from autorecompute.backends import registry
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB, format_bytes

STUDIES = Path(__file__).parents[1] / "studies"

PLAIN_BATCH = 8
PLAIN_COLUMNS = ("study", "live", "answer", "its live", "kept", "blocks live", "blocks keep", "over blocks", "trials")

BATCHES = {"bert_mlm": 24, "gpt2_clm": 24, "deberta_mlm": 16, "bloom_clm": 24, "vit_images": 48}
"""Batches of which the activations outweigh all else that the process holds."""

ARGUMENTS = ("--device", "cpu", "--ortmodule")
COLUMNS = ("study", "batch", "memory", "config", "peak", "kept", "over full", "trials", "time")
GIVING_BACK = {"MALLOC_MMAP_THRESHOLD_": str(MIB)}
"""Blocks from this size on go back to the system when they are freed (glibc's mallopt(3))."""

KEPT_GOAL, FULL_GOAL = 0.93, 1.16


def measure_limit(study, batch):
    """What a whole process needs to train the batch without recompute."""
    job = Job(script=STUDIES / study / "train.py", arguments=ARGUMENTS)
    with tempfile.TemporaryDirectory() as logs:
        bench = Bench(job, batch, Path(logs))
        with bench:
            bench.detect()
            return bench.watch({}, Effort(), batch).peak_bytes


def tune(study, batch, limit_bytes):
    """The answer as ``tune --json`` prints it, where there is one."""
    script = STUDIES / study / "train.py"
    options = ["--target-batch", str(batch), "--memory-limit", str(limit_bytes), "--fresh", "--json"]
    command = [sys.executable, "-m", "autorecompute", "tune", str(script), *options, "--", *ARGUMENTS]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def fastest_full(answer):
    """The relative throughput of the fastest way to recompute everything."""
    presets = answer["presets"].values()
    return max((preset["relative_throughput"] for preset in presets if preset["relative_throughput"]), default=None)


def spread(best):
    """How far the kept throughput may be off, where the config was in a race."""
    low, high = best["relative_low"], best["relative_high"]
    return "" if low is None else f" ({low:.2f} to {high:.2f})"


def report(study, batch):
    """The cells of one study's row, in an ORTModule."""
    limit_bytes = measure_limit(study, batch)
    answer = tune(study, 2 * batch, limit_bytes)
    best, full = answer["best"], fastest_full(answer)
    cells = [study, f"{batch} -> {2 * batch}", f"{limit_bytes // MIB} MiB"]
    if best is None:
        return [*cells, "nothing fits", "-", "-", "-", str(answer["trials"]), f"{answer['wall_seconds']:.0f} s"]
    kept = best["relative_throughput"]
    return [
        *cells,
        best["description"],
        f"{best['peak_bytes'] // MIB} MiB",
        f"{kept:.2f}{spread(best)}",
        "-" if full is None else f"{kept / full:.2f}",
        str(answer["trials"]),
        f"{answer['wall_seconds']:.0f} s",
    ]


def live_bytes(detection, batch):
    """What a step of a batch holds without recompute, as steps on fake tensors say."""
    forecasts = registry.controller("torch").memory_of(detection).forecasts({**detection.dims, BATCH: batch})
    return next(forecast.live_bytes for forecast in forecasts if forecast.config.is_none)


def report_plain(study):
    """The cells of one study's row, in plain PyTorch."""
    job = Job(script=STUDIES / study / "train.py", arguments=("--device", "cpu"), backend="torch")
    with tempfile.TemporaryDirectory() as logs, Bench(job, 2 * PLAIN_BATCH, Path(logs)) as bench:
        hand = Hand(bench)
        small, large = (live_bytes(hand.detection, batch) for batch in (PLAIN_BATCH, 2 * PLAIN_BATCH))
        none, blocks = Config(), hand.detection.space.presets["blocks"]
        most = hand.measure(none).measurement.peak_bytes

        def live(config):
            """What its step holds: peaks differ by that alone."""
            return format_bytes(large - (most - hand.measure(config).measurement.peak_bytes))

        answer, trials = hand.search(most - (large - small))
        told = [study, f"{format_bytes(small)} -> {format_bytes(large)}"]
        if answer is None:
            return [*told, "nothing fits", "-", "-", live(blocks), "-", "-", str(trials)]
        times = hand.race(list(dict.fromkeys([answer.config, none, blocks])))
        return [
            *told,
            " ".join(answer.config.texts) or "none",
            live(answer.config),
            beside(times, answer.config, none),
            live(blocks),
            beside(times, blocks, none),
            beside(times, answer.config, blocks),
            str(trials),
        ]


def main():
    """All studies, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ortmodule", action="store_true", help="train in ORTModules, not in plain PyTorch")
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="all where none is named")
    args = parser.parse_args()
    table = Table(
        title=f"twice the batch in the same memory (goals: {KEPT_GOAL} kept, {FULL_GOAL} over full recompute)"
    )
    for column in COLUMNS if args.ortmodule else PLAIN_COLUMNS:
        table.add_column(column)
    if args.ortmodule:
        os.environ.update(GIVING_BACK)
    for study in args.studies or (BATCHES if args.ortmodule else NAMES):
        table.add_row(*(report(study, BATCHES[study]) if args.ortmodule else report_plain(study)))
    Console(width=220).print(table)


if __name__ == "__main__":
    main()
