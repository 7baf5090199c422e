"""The answers of the search on compiled models beside what people set by hand: ``make bench-compiled``.

By hand means: what the compiler does by itself, the best of its budgets, and the first k blocks for every k, whole or
with their matrix products kept. Budgets are those from 0.9 to 0.1 that make a difference; 1 is the compiler by itself,
and 0 draws the masks of a dropout anew. Everything is measured in one process, in rounds of random order with the
compiler's own before and after each, and what was compiled once is found in the compiler's caches. At each of several
limits between the least peak and the compiler's own the search begins anew on these figures. Times are processor time,
peaks are bytes of live tensors beyond what is held between two steps. Arguments name studies.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.search.choice import MODEL, make_searcher
from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import Effort
from autorecompute.units import format_bytes

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = ("gpt2_clm",)
SIZES = ("--layers", "2", "--hidden", "64", "--sequence", "128")
TARGET_BATCH = 32

LIMITS = (0.25, 0.40, 0.55, 0.70, 0.85)
"""Shares of the way from the least peak to that of the compiler by itself."""

ROUNDS = 3
EFFORT = Effort(warmup=1, steps=6)
MOST_TRIALS = 20


class Figures:
    """Measures configs of one study, each in several rounds.

    Args:
        bench: Where they are measured.
    """

    def __init__(self, bench):
        self.bench, self.space = bench, bench.detect().space
        self.compile_seconds = {}
        self._times, self._found = {}, {}

    def measure(self, configs):
        """Goes through the rounds for those that were not measured yet."""
        new = [config for config in dict.fromkeys(configs) if config not in self._times and not config.is_none]
        for number in range(ROUNDS if new else 0):
            random.Random(number).shuffle(new)
            before = self._step(Config())
            for config in new:
                own, after = self._step(config), self._step(Config())
                self._times.setdefault(config, []).append((before + after) / 2 / own)
                before = after

    def _step(self, config):
        measured = self.bench.measure(config, EFFORT)
        if not measured.outcome.is_measured:
            raise SystemExit(f"{self.space.describe(config)}: {measured.outcome} {measured.message}")
        self.compile_seconds.setdefault(config, measured.compile_seconds)
        self._found.setdefault(config, measured)
        return measured.median_cpu_seconds

    def peak(self, config):
        """The peak of a config that was measured."""
        return self._found[config].peak_bytes

    def live(self, config):
        """The most bytes of tensors beyond what is held between two steps."""
        return self._found[config].allocated_bytes

    def throughput(self, config):
        """Beside the compiler by itself: the median of the rounds, the least and the most."""
        times = [1.0] if config.is_none else self._times[config]
        return statistics.median(times), min(times), max(times)

    def trial(self, config, number):
        """A config as a search has it."""
        self.measure([config])
        return Trial(
            number=number,
            config=config,
            description=self.space.describe(config),
            reason="",
            measurement=self._found[config],
            reference_seconds=1.0,
            reference_cpu_seconds=self.throughput(config)[0] * self._found[config].median_cpu_seconds,
            is_reference_disturbed=True,
        )

    def search(self, limit_bytes):
        """The fastest config that a new search finds under a limit, and how many it tried."""
        searcher = make_searcher(MODEL, self.space, budget=MOST_TRIALS, limit_bytes=limit_bytes)
        trials = []
        while len(trials) < MOST_TRIALS and (proposal := searcher.propose(trials)) is not None:
            trials.append(self.trial(proposal.config, len(trials)).under(limit_bytes))
        return self.fastest([trial.config for trial in trials], limit_bytes), len(trials)

    def fastest(self, configs, limit_bytes):
        """The fastest of these under a limit; ``None`` where none fits."""
        fitting = [config for config in configs if self.peak(config) <= limit_bytes]
        return max(fitting, key=lambda config: self.throughput(config)[0], default=None)


def by_hand(space):
    """The budgets, and the first k blocks for every k."""
    budgets = [Config(frozenset(plan.choices)) for plan in space.plans if plan.sites == {"graph"}]
    blocks = [plan for plan in space.plans if plan.counts]
    return budgets, [Config(frozenset(plan.chosen(k))) for plan in blocks for k in range(1, plan.occurrences + 1)]


def words(figures, config):
    """A config with its throughput and its peak."""
    if config is None:
        return "none fits"
    median, least, most = figures.throughput(config)
    peak = format_bytes(figures.live(config))
    return f"{figures.space.describe(config)}: {median:.3f} ({least:.2f}-{most:.2f}), {peak}"


def tables(name, figures):
    """What was measured, and a row for each limit."""
    budgets, counts = by_hand(figures.space)
    everything = [Config(), *budgets, *counts]
    figures.measure(everything)
    measured = Table(title=f"{name} {' '.join(SIZES)}, batch {TARGET_BATCH}: throughput beside the compiler by itself")
    for column in ("config", "throughput", "least", "most", "peak", "compiled in"):
        measured.add_column(column)
    for config in everything:
        ratios = [f"{ratio:.3f}" for ratio in figures.throughput(config)]
        seconds = f"{figures.compile_seconds[config]:.1f} s"
        measured.add_row(figures.space.describe(config), *ratios, format_bytes(figures.live(config)), seconds)
    yield measured
    least, most = min(map(figures.peak, everything)), figures.peak(Config())
    answers = Table(title=f"{name}: the answer beside what is set by hand")
    for column in ("limit", "best budget", "best k of N", "answer", "trials"):
        answers.add_column(column)
    for share in LIMITS:
        limit_bytes = round(least + share * (most - least))
        answer, trials = figures.search(limit_bytes)
        best = [figures.fastest(configs, limit_bytes) for configs in (budgets, counts)]
        answers.add_row(f"{share:.0%}", *(words(figures, config) for config in (*best, answer)), str(trials))
    yield answers


def main(names):
    """All studies, or those that are named."""
    for name in names or NAMES:
        arguments = ("--device", "cpu", "--compile", *SIZES)
        job = Job(script=STUDIES / name / "train.py", arguments=arguments, backend="torch")
        with tempfile.TemporaryDirectory() as logs, Bench(job, TARGET_BATCH, Path(logs)) as bench:
            for table in tables(name, Figures(bench)):
                Console(width=200).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
