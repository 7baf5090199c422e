"""Tunes the models of the tables from scratch, on this machine, and looks the answers up: ``make bench-live``.

A replay shows what a search is worth, this what a whole tuning is: small steps, trials, race and confirmation. The
model of a table is tuned under a limit of that table, and the throughput of what is emitted is held against the best of
all recorded configs that fit, by what all recordings together say. Where whole processes need more than the steps of a
trial, the tuning obeys a lower limit than the one it is judged by.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table as Grid

from autorecompute.plans import Config
from autorecompute.units import MIB
from record import STUDIES, compute_with_one_thread
from replay import Replay
from tables import SUFFIX, TABLES, load

SHARES = (0.25, 0.55)
GOAL = 0.02
"""The share of the best throughput that an answer may lose."""

STEPS = ("--steps", "1000000")


def tune(table, limit_bytes):
    """The answer as ``tune --json`` prints it."""
    plain = table.plain
    script = STUDIES / plain["study"] / "train.py"
    options = ["--target-batch", str(plain["batch"]), "--memory-limit", str(limit_bytes), "--fresh", "--json"]
    training = ["--", "--device", "cpu", *STEPS, *plain["arguments"]]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autorecompute", "tune", str(script), *options, *training]
        done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def judge(replay, limit_bytes, answer):
    """The cells of one tuning's row: what was found, its regret, and what it took."""
    best = answer["best"]
    cells = [f"{limit_bytes // MIB} MiB", str(answer["trials"]), f"{answer['wall_seconds']:.0f} s"]
    if best is None:
        return [*cells, "nothing fits", "-", "-", "-"]
    config = Config(level=best["level"]) if best["level"] else Config.from_rows(best["config"])
    cells += [best["description"], f"{best['peak_bytes'] // MIB} MiB"]
    if config not in replay.truths:
        return [*cells, "-", "not in the table"]
    if replay.exceeds(config, limit_bytes):
        return [*cells, "-", "truly over the limit"]
    # What may as well fit, and is faster than all that surely does, loses nothing.
    regret = max(0.0, 1 - replay.best_ratio(limit_bytes) / replay.truths[config].ratio)
    return [*cells, f"{regret:.1%}", "met" if regret <= GOAL else "missed"]


def main():
    """Tunes for the tables that are named, or for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["bert_mlm"], help="names of tables (default: bert_mlm)")
    compute_with_one_thread()
    grid = Grid(title=f"answers beside the best of all recorded configs (goal: {GOAL:.0%} lost at most)")
    for column in ("table", "limit", "trials", "time", "answer", "its process", "lost", "goal"):
        grid.add_column(column)
    for name in parser.parse_args().tables:
        replay = Replay(load(TABLES / f"{name}{SUFFIX}"))
        for share in SHARES:
            limit_bytes = replay.limit_bytes(share)
            grid.add_row(name, *judge(replay, limit_bytes, tune(replay.table, limit_bytes)))
    Console(width=160).print(grid)


if __name__ == "__main__":
    main()
