"""Replays the search on every recorded table, and shows it beside what other searchers came to: ``make bench-search``.

Others are those of Optuna, presets and an engineer's ways, which do not change with this package. ``--searchers``
replays them again, which takes hours. What a searcher came to last is kept in ``studies/tables/results.jsonl``.

A search is given recordings instead of a machine. It is asked how many trials it takes until a config was measured that
truly fits and whose throughput is within 1 % of the best that fits, over several limits and seeds. What a config truly
needs is told by all recordings together (``truth.py``); what the searcher is told is one recording of it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import multiprocessing
import os
from pathlib import Path

from rich.console import Console
from rich.progress import track

from figures import as_columns, draw_limits, draw_searchers, join, judge_goals, merge
from play import BUDGET, Player
from replay import SHARES, Replay
from searchers import OURS, SEARCHERS
from tables import SUFFIX, TABLES, load, packed_names

SEEDS = 20
SLOW = {"optuna gp": 5}
"""Where nobody asks for more, these have fewer seeds: their proposals would take most of the time."""

WIDTH = 160


@functools.cache
def open_replay(file):
    """The bench of a table, read once in each process."""
    return Replay(load(file))


def play(job):
    """One search."""
    file, name, share, seed = job
    replay = open_replay(file)
    limit_bytes = replay.limit_bytes(share)
    return Player(replay, limit_bytes, seed).run(SEARCHERS[name](replay.table, limit_bytes, BUDGET, seed))


def compare(file, names, seeds, pool):
    """Each of these searchers on one table, with its columns."""
    for name in names:
        jobs = [
            (file, name, share, seed)
            for share, seed in itertools.product(SHARES, range(seeds or SLOW.get(name, SEEDS)))
        ]
        done = pool.imap(play, jobs)
        yield name, as_columns(list(track(done, f"{file.name}: {name}", len(jobs), console=Console(stderr=True))))


def show(tables, console):
    """All tables, all of them together, and the goals."""
    for name, searchers in tables.items():
        console.print(draw_searchers(name, searchers))
    common = [name for name in SEARCHERS if all(name in searchers for searchers in tables.values())]
    together = {name: join([searchers[name] for searchers in tables.values()]) for name in common}
    console.print(draw_searchers("all tables", together))
    if any(OURS in searchers for searchers in tables.values()):
        console.print(draw_limits(tables))
        console.print(*judge_goals(tables), sep="\n", highlight=False)


def main():
    """Runs what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", help="names, or files of journals (default: all packed tables)")
    parser.add_argument("--searchers", nargs="+", choices=SEARCHERS, default=[OURS], help=f"(default {OURS})")
    parser.add_argument("--seeds", type=int, help=f"(default {SEEDS}, and fewer for {', '.join(SLOW)})")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--output", type=Path, default=TABLES / "results.jsonl")
    args = parser.parse_args()
    # A sampler that computes in threads would keep the other processes from theirs.
    os.environ["OMP_NUM_THREADS"] = "1"
    names = args.tables or packed_names()
    files = {Path(name).stem: Path(name) if Path(name).suffix else TABLES / f"{name}{SUFFIX}" for name in names}
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for name, file in files.items():
            for searcher, columns in compare(file, args.searchers, args.seeds, pool):
                merge(args.output, {name: {searcher: columns}})  # a run of hours that ends early has shown something
    kept = merge(args.output, {})
    show({name: kept[name] for name in files}, Console(width=WIDTH))


if __name__ == "__main__":
    main()
