"""What recompute in an ORTModule buys on every study, in the terms of other systems' figures: ``make bench-anchors``.

A study gets the memory that a batch takes without recompute, and is tuned to train twice the batch in it. Two figures
come of it, both relative to the same reference in the same minutes: the throughput of the answer beside training the
doubled batch without recompute and without a limit (selective recompute elsewhere keeps 93 % of it), and beside
recomputing everything (16 % more elsewhere). Arguments name studies and leave out the rest.

All processes hand freed memory back at once, as they would on a card: glibc raises the size from which it does so while
a model is exported, and what it keeps of the export then counts beside the training, more or less of it by chance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import Effort
from autorecompute.units import MIB

STUDIES = Path(__file__).parents[1] / "studies"
BATCHES = {"bert_mlm": 24, "gpt2_clm": 24, "deberta_mlm": 16, "bloom_clm": 24, "vit_images": 48}
"""Batches of which the activations outweigh all else that the process holds."""

ARGUMENTS = ("--device", "cpu", "--ortmodule")
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
    """The cells of one study's row."""
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


def main(names):
    """All studies, or those that are named."""
    os.environ.update(GIVING_BACK)
    table = Table(
        title=f"twice the batch in the same memory (goals: {KEPT_GOAL} kept, {FULL_GOAL} over full recompute)"
    )
    for column in ("study", "batch", "memory", "config", "peak", "kept", "over full", "trials", "time"):
        table.add_column(column)
    for name in names or BATCHES:
        table.add_row(*report(name, BATCHES[name]))
    Console(width=160).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
