"""Tunes the models of the tables from scratch, on this machine, and looks the answers up: ``make bench-live``.

A replay shows what a search is worth, this what a whole tuning is: small steps, trials, race and confirmation. The
model of a table is tuned under a limit between its least peak and that without recompute, as they are here, and the
throughput of what is emitted is held against the best of all recorded configs that fit, by what all recordings together
say.

The same training holds tens of MiB more on one processor than on another, and a whole process more than its trial. All
configs are taken to hold as much more here than in the table as the answer does: those that fit are those that need no
more than its recorded peak, and what its process left of the limit. Plans that were too small for the table are left
out of an answer that is looked up.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB
from record import STUDIES, UNENDING, set_up_workers
from replay import Replay
from tables import SUFFIX, TABLES, load

SHARES = (0.25, 0.55)
GOAL = 0.02
"""The share of the best throughput that an answer may lose."""


def job_of(table):
    """The training of a table; a torch table has all of its arguments."""
    plain = table.plain
    arguments = () if table.is_torch else UNENDING
    backend = "torch" if table.is_torch else "ortmodule"
    return Job(
        script=STUDIES / plain["study"] / "train.py", arguments=(*arguments, *plain["arguments"]), backend=backend
    )


def tune(table, limit_bytes):
    """The answer as ``tune --json`` prints it, and the seconds that its trials took."""
    plain, job = table.plain, job_of(table)
    options = [
        "--backend",
        job.backend,
        "--target-batch",
        str(plain["batch"]),
        "--memory-limit",
        str(limit_bytes),
        "--fresh",
        "--json",
    ]
    training = ["--", *job.arguments]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "autorecompute", "tune", str(job.script), *options, *training]
        done = subprocess.run(command, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
        kept = [json.loads(file.read_text()) for file in Path(folder).glob("studies/*/trials/*/result.json")]
    return json.loads(done.stdout), sum(map(trial_seconds, kept))


def trial_seconds(trial):
    """What one trial took: its steps, those without recompute between them, and all around them."""
    measured, beside = trial["measurement"], trial["reference_seconds"] or 0.0
    return trial["overhead_seconds"] + measured["warmup_seconds"] + sum(s + beside for s in measured["step_seconds"])


def limits_here(replay, shares):
    """The limits at these shares of the way from the least peak to that without recompute, as both are here."""
    least = min(replay.truths, key=lambda config: replay.truths[config].peak_bytes)
    with (
        tempfile.TemporaryDirectory() as logs,
        Bench(job_of(replay.table), replay.table.plain["batch"], Path(logs)) as bench,
    ):
        none_bytes, least_bytes = (bench.measure(config, Effort()).peak_bytes for config in (Config(), least))
    return [round(least_bytes + share * (none_bytes - least_bytes)) for share in shares]


def look_up(replay, best):
    """The answer among the configs of the table; one of counts is told by its parts, so that all of it counts."""
    if replay.table.is_torch:
        return Config.parse(best["config"])
    recorded = {str(row) for config in replay.truths for row in config.choices}
    return Config.parse([row for row in best["config"] if row in recorded])


def judge(replay, limit_bytes, answer, measuring_seconds):
    """The cells of one tuning's row: what was found, its regret, and what it took."""
    best = answer["best"]
    cells = [str(answer["trials"]), f"{measuring_seconds:.0f} s", f"{answer['wall_seconds']:.0f} s"]
    if best is None:
        return [*cells, "nothing fits", "-", "-", "-"]
    config = look_up(replay, best)
    cells += [best["description"], f"{best['peak_bytes'] // MIB} MiB"]
    truth = replay.truth_of(config)
    if truth is None:
        return [*cells, "-", "not in the table"]
    left_bytes = max(limit_bytes - best["peak_bytes"], 0)
    regret = max(0.0, 1 - replay.best_ratio(truth.peak_bytes + left_bytes) / truth.ratio)
    return [*cells, f"{regret:.1%}", "met" if regret <= GOAL else "missed"]


def main():
    """Tunes for the tables that are named, or for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", default=["bert_mlm"], help="names of tables (default: bert_mlm)")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help="of the way (default: 0.25 0.55)")
    args = parser.parse_args()
    set_up_workers()
    grid = Grid(title=f"answers beside the best of all recorded configs (goal: {GOAL:.0%} lost at most)")
    for column in ("table", "limit", "trials", "measuring", "time", "answer", "its process", "lost", "goal"):
        grid.add_column(column)
    for name in args.tables:
        replay = Replay(load(TABLES / f"{name}{SUFFIX}"))
        for limit_bytes in limits_here(replay, args.shares):
            cells = judge(replay, limit_bytes, *tune(replay.table, limit_bytes))
            grid.add_row(name, f"{limit_bytes // MIB} MiB", *cells)
    Console(width=160).print(grid)


if __name__ == "__main__":
    main()
