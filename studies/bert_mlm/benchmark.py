"""Measures what tuning ``bert_mlm`` in an ORTModule costs and gains, on this machine; all ratios are taken in one run.

Prints one JSON object with each figure beside its goal, and exits with 1 where a goal is missed. It tunes for real, in
a temporary folder, with the interpreter it runs under.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from limit import choose_limit

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

SCRIPT = Path(__file__).with_name("train.py").resolve()
ARGUMENTS = ("--ortmodule",)
FRESH_TRIALS = 25
"""A search that knows nothing takes about as many trials; a process for each is how others run them."""

HELP_RUNS = 5
PLAIN_STEPS = 12


def main() -> int:
    """Run all parts and print the figures."""
    args = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        costs = measure_starts(where, args.batch, args.fresh_starts)
        limit = choose_limit(costs["resting_bytes"], costs["peak_without_recompute_bytes"])
        began = time.monotonic()
        answer = tune(where, args.batch, limit)
        tuning_seconds = time.monotonic() - began
        trials = show(where, answer["study"])["trials"]
        plain_peak = measure_plain_run(where, args.batch, answer["best"]["env"])
    overheads = [trial["overhead_seconds"] for trial in trials]
    best, presets = answer["best"], answer["presets"].values()
    figures = {
        "swap overhead, median seconds": (statistics.median(overheads), "<= 1"),
        "swap overhead, worst seconds": (max(overheads), "<= 1"),
        "fresh process overhead over swap overhead": (
            costs["fresh_overhead_seconds"] / statistics.median(overheads),
            ">= 10",
        ),
        "presets that hold the limit": (sum(figure["outcome"] == "ok" for figure in presets), "<= 0"),
        "confirmed within the limit": (int(best["confirmed"] and best["peak_bytes"] <= limit), ">= 1"),
        "throughput relative to no recompute": (best["relative_throughput"], ">= 0.85"),
        "trials": (answer["trials"], "<= 40"),
        "tuning over 25 fresh-process trials": (tuning_seconds / (FRESH_TRIALS * costs["fresh_trial_seconds"]), "<= 1"),
        "plain run's peak off the reported one": (abs(plain_peak / best["peak_bytes"] - 1), "<= 0.05"),
        "CPU seconds of --help": (measure_help(), "<= 0.2"),
    }
    report = {name: {"measured": round(value, 3), "goal": goal} for name, (value, goal) in figures.items()}
    print(json.dumps({"figures": report, "limit_bytes": limit, "costs": costs, "answer": answer}, indent=2))
    return int(not all(holds(value, goal) for value, goal in figures.values()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32, help="target batch (default 32)")
    parser.add_argument("--fresh-starts", type=int, default=3, help="fresh processes to time (default 3)")
    return parser.parse_args()


def holds(value: float, goal: str) -> bool:
    """Tell whether a figure reaches its goal, ``<= 1`` or ``>= 10``."""
    relation, bound = goal.split()
    return value <= float(bound) if relation == "<=" else value >= float(bound)


def measure_starts(where: Path, batch: int, starts: int) -> dict[str, float]:
    """Return what a fresh process for each config costs beyond its steps, and the memory without recompute."""
    job, effort, overheads, whole = Job(script=SCRIPT, arguments=ARGUMENTS), Effort(), [], []
    with Bench(job, batch, where) as bench:
        for _ in range(starts):
            bench.close()
            began = time.monotonic()
            detection = bench.detect()
            measurement = bench.measure(Config(), effort)
            elapsed = time.monotonic() - began
            whole.append(elapsed)
            overheads.append(elapsed - measurement.warmup_seconds - sum(measurement.step_seconds))
    return {
        "fresh_overhead_seconds": statistics.median(overheads),
        "fresh_trial_seconds": statistics.median(whole),
        "resting_bytes": detection.resting_bytes,
        "peak_without_recompute_bytes": measurement.peak_bytes,
    }


def tune(where: Path, batch: int, limit: int) -> dict:
    # What a study that comes with the package knows would be counted as found.
    options = ["--fresh", "--target-batch", str(batch), "--memory-limit", str(limit), "--json"]
    return json.loads(run_tool(where, "tune", str(SCRIPT), *options, "--", *ARGUMENTS))


def show(where: Path, study: str) -> dict:
    return json.loads(run_tool(where, "show", study, "--json"))


def run_tool(where: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "autorecompute", *arguments]
    return subprocess.run(command, cwd=where, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure_plain_run(where: Path, batch: int, environment: dict[str, str]) -> int:
    """Peak resident bytes of the script run as a user would, under the emitted variables and nothing else."""
    command = [sys.executable, str(SCRIPT), *ARGUMENTS, "--batch", str(batch), "--steps", str(PLAIN_STEPS)]
    process = subprocess.Popen(
        command, cwd=where, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"the plain run failed with status {status}")
    return usage.ru_maxrss * 1024  # KiB on Linux


def measure_help() -> float:
    """Least CPU time of ``autorecompute --help`` over a few runs."""
    return min(_cpu_seconds([sys.executable, "-m", "autorecompute", "--help"]) for _ in range(HELP_RUNS))


def _cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())
