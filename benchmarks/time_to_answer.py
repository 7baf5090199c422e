"""Steps of a training until a tuning has an answer, and what that loses, on every recorded table: ``make bench-time``.

Whole tunings are played on tables of measured configs, with the recorded noise of their steps or on a busy machine. No
step is trained, so that the load of this machine changes nothing. Steps are counted in all processes: of trials, of
races, of confirmations, and of the comparison with a smaller batch. An answer may be used once a process of its own has
confirmed it.
"""

from __future__ import annotations

import argparse
import itertools
import math
import multiprocessing
import os
import random
import statistics
from functools import cache

import noise

from replay import Replay
from tables import SUFFIX, TABLES, load, packed_names
from tuned import play

SHARES = (0.25, 0.55, 0.85)
"""Limits, as shares of the way from the least peak to that without recompute."""

GOALS = {"first": 40, "median": 80, "late": 120, "regret": 0.01, "late regret": 0.03}

WEATHERS = {
    "recorded": lambda _: itertools.repeat(1.0),
    "busy": lambda chance: noise.replay(chance, "busy"),
    "swings": noise.swings,
}


@cache
def open_replay(name):
    """A table, read once in each process."""
    return Replay(load(TABLES / f"{name}{SUFFIX}"))


def tune(job):
    """One tuning."""
    name, share, seed, weather = job
    return name, play(open_replay(name), share, seed, WEATHERS[weather](random.Random(f"{name} {share} {seed}")))


def quantile(figures, share):
    """Return the most that this share of the tunings came to; ``None`` counts as infinite."""
    ordered = sorted(math.inf if figure is None else figure for figure in figures)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def line_of(name, runs):
    """The figures of these tunings: medians, and nine in ten."""

    def of(key, form):
        values = [getattr(run, key) for run in runs]
        return "/".join(form(quantile(values, part)) for part in (0.5, 0.9))

    def number(value):
        return f"{value:.0f}"

    def share(value):
        return f"{value:.1%}"

    cells = [of("first_steps", number), of("first_starts", number), of("first_regret", share)]
    cells += [of("steps", number), of("starts", number), of("regret", share), of("trials", number)]
    cells += [
        of("seconds", number),
        str(sum(run.is_infeasible for run in runs)),
        str(sum(run.is_wrong for run in runs)),
    ]
    return f"{name:<14}" + "".join(f"{cell:>13}" for cell in cells)


HEAD = ("usable", "starts", "regret", "end", "starts", "regret", "trials", "seconds", "infeasible", "surely wrong")


def main():
    """Tunes on all tables, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tables", nargs="*", help="names of tables (default: all)")
    parser.add_argument("--seeds", type=int, default=5, help="tunings at each limit (default 5)")
    parser.add_argument("--weather", choices=WEATHERS, default="recorded", help="(default: the recorded noise alone)")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    names = args.tables or packed_names()
    jobs = [(name, share, seed, args.weather) for name in names for seed in range(args.seeds) for share in SHARES]
    print(f"{len(jobs)} tunings, {args.weather} noise; steps, medians and nine in ten")
    print(f"{'table':<14}" + "".join(f"{cell:>13}" for cell in HEAD), flush=True)
    found = {}
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        for name, run in pool.imap(tune, jobs):
            runs = found.setdefault(name, [])
            runs.append(run)
            if len(runs) == args.seeds * len(SHARES):
                print(line_of(name, runs), flush=True)
    every = [run for runs in found.values() for run in runs]
    print(line_of("all tables", every))
    mean = statistics.fmean(run.steps for run in every)
    print(f"mean steps to the end: {mean:.0f}; goals: {GOALS}")


if __name__ == "__main__":
    main()
