"""Measures what an answer costs that is known already: tool time after the script's own start, without any trial.

Prints one JSON object with each figure beside its goal, and exits with 1 where a goal is missed. It tunes the smallest
script for real, in a temporary folder, and then asks for the same again: under the same name, and under another.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "tests" / "scripts" / "classifier.py"
GOAL_SECONDS = 2.0
RUNS = 3

TIMED = """
import json, sys, time
from autorecompute.cli import main
from autorecompute.trials import Bench
detect, script_seconds, started = Bench.detect, 0.0, 0.0

def timed(bench):
    global script_seconds, started
    start = time.monotonic()
    try:
        return detect(bench)
    finally:
        started = time.monotonic()
        script_seconds += started - start

Bench.detect = timed
code = main(sys.argv[1:])
after = time.monotonic() - started
times = {"script_seconds": script_seconds, "after_seconds": after, "cpu_seconds": time.process_time()}
print(json.dumps(times), file=sys.stderr)
raise SystemExit(code)
"""
"""What a command does, and how long the script took of it until its first session was there."""


def main():
    """Runs all parts and prints the figures."""
    with tempfile.TemporaryDirectory() as folder:
        first = tune(folder, "first")
        same = [tune(folder, "first") for _ in range(RUNS)]
        other = [tune(folder, f"other-{number}") for number in range(RUNS)]
    figures = {
        "trials": first["answer"]["trials"],
        "first answer, whole seconds": first["whole_seconds"],
        "same study, seconds after the script's start": min(run["after_seconds"] for run in same),
        "same problem under another name, seconds after the script's start": min(run["after_seconds"] for run in other),
        "CPU seconds of the whole tool": min(run["cpu_seconds"] for run in (*same, *other)),
        "seconds of the whole tool": min(map(tool_seconds, same)),
        "script's own start, seconds": min(run["script_seconds"] for run in (*same, *other)),
    }
    goals = {name: GOAL_SECONDS for name in figures if "after" in name or name.startswith("CPU")}
    is_repeated = all(run["answer"]["trials"] == first["answer"]["trials"] for run in (*same, *other))
    report = {name: {"measured": round(value, 3), "goal": goals.get(name)} for name, value in figures.items()}
    print(json.dumps({"figures": report, "without a trial": is_repeated}, indent=2))
    return int(not is_repeated or any(figures[name] > goal for name, goal in goals.items()))


def tool_seconds(run):
    """What the command took beyond the script's own start."""
    return run["whole_seconds"] - run["script_seconds"]


def tune(folder, study):
    """Tunes the script in a study of this name."""
    command = ["tune", str(SCRIPT), "--study", study, "--target-batch", "64", "--memory-limit", "100GiB", "--json"]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", TIMED, *command, "--", "--bs", "{batch}"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    times = json.loads(done.stderr.splitlines()[-1])
    return {**times, "whole_seconds": time.monotonic() - began, "answer": json.loads(done.stdout)}


if __name__ == "__main__":
    sys.exit(main())
