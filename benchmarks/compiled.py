"""The answers of the search on compiled models beside what people set by hand: ``make bench-compiled``.

By hand means: what the compiler does by itself, the best of its budgets, and the first k blocks for every k, whole or
with their matrix products kept. Budgets are those from 0.9 to 0.1 that make a difference; 1 is the compiler by itself,
and 0 draws the masks of a dropout anew. Clusters of operators are measured one by one. Everything is measured in one
process, in rounds of random order with the compiler's own before and after each. The compiler's caches begin empty, and
what was compiled once is found there. Each peak is held against its forecast. At each of several limits between the
least peak and the compiler's own the search of ``tune`` begins anew on these figures, and with ``--greedy`` the one
that has no forecast. Times are processor time, peaks are bytes of live tensors beyond what is held between two steps.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autorecompute.backends.registry import backend_of
from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.search.candidates import choices_of
from autorecompute.search.sampling import GREEDY, MODEL, make_searcher
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.trials.private import forget_compiled_code
from autorecompute.units import format_bytes

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = ("gpt2_clm", "llama_clm", "bert_mlm", "vit_images")
SMALL = {"vit_images": ("--size", "32")}
"""Sizes beside layers and width; those of texts for others."""

OF_TEXTS = ("--sequence", "128")

UNENDING = ("--device", "cpu", "--steps", "1000000")
"""A script that comes to its end is started again, and compiles again all that it is asked for."""

LIMITS = (0.25, 0.40, 0.55, 0.70, 0.85)
"""Shares of the way from the least peak to that of the compiler by itself."""

EFFORT = Effort(warmup=1, steps=6)
MOST_TRIALS = 20


class Figures:
    """Measures configs of one study, each in several rounds.

    Args:
        bench: Where they are measured.
        rounds: How many.
    """

    def __init__(self, bench, rounds):
        self._rounds = rounds
        self.bench, self.detection = bench, bench.detect()
        self.space, backend = self.detection.space, backend_of(self.detection.versions)
        self.memory, self.needs = backend.peaks_of(self.detection), backend.needs_of(self.detection)
        self.compile_seconds = {}
        self._times, self._found = {}, {}

    def measure(self, configs):
        """Goes through the rounds for those that were not measured yet."""
        new = [config for config in dict.fromkeys(configs) if config not in self._times and not config.is_none]
        for number in range(self._rounds if new else 0):
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

    def search(self, name, limit_bytes):
        """The fastest config that a new search finds under a limit, and how many it tried: each is compiled once."""
        dims = {**self.detection.dims, "batch": self.detection.batch}
        known = {"memory": self.memory, "dims": dims, "needs": self.needs}
        searcher = make_searcher(name, self.space, budget=MOST_TRIALS, limit_bytes=limit_bytes, **known)
        trials = [self.trial(Config(), 0).under(limit_bytes)]
        while len(trials) < MOST_TRIALS and (proposal := searcher.propose(trials)) is not None:
            trials.append(self.trial(proposal.config, len(trials)).under(limit_bytes))
        return self.fastest([trial.config for trial in trials], limit_bytes), len(trials)

    def forecasts(self, configs):
        """What the graph says of these, in bytes of live tensors."""
        dims = {**self.detection.dims, "batch": self.detection.batch}
        simulator = self.memory.simulator(dims, choices_of(self.space))
        return simulator.simulate(simulator.matrix(configs)).peak_bytes

    def fastest(self, configs, limit_bytes):
        """The fastest of these under a limit; ``None`` where none fits."""
        fitting = [config for config in configs if self.peak(config) <= limit_bytes]
        return max(fitting, key=lambda config: self.throughput(config)[0], default=None)


def by_hand(space):
    """The budgets, the first k blocks for every k, and what people do not set: clusters made again or kept."""
    budgets, counts, tags = [], [], []
    for plan in space.plans:
        if plan.option in {"checkpoint", "keep_matmul"}:
            counts += [Config(frozenset(plan.chosen(k))) for k in range(1, plan.occurrences + 1)]
        elif plan.sites == {"graph"} and "keep" not in plan.option:
            budgets.append(Config(frozenset(plan.choices)))
        else:
            tags.append(Config(frozenset(plan.choices)))
    return budgets, counts, tags


def words(figures, config):
    """A config with its throughput and its peak."""
    if config is None:
        return "none fits"
    median, least, most = figures.throughput(config)
    peak = format_bytes(figures.live(config))
    return f"{figures.space.describe(config)}: {median:.3f} ({least:.2f}-{most:.2f}), {peak}"


def tables(title, figures, searches):
    """What was measured, and a row for each limit."""
    budgets, counts, tags = by_hand(figures.space)
    everything = [Config(), *budgets, *counts, *tags]
    figures.measure(everything)
    measured = Table(title=f"{title}: throughput beside the compiler by itself")
    for column in ("config", "throughput", "least", "most", "peak", "forecast", "error", "compiled in"):
        measured.add_column(column)
    errors = []
    for config, forecast in zip(everything, figures.forecasts(everything), strict=True):
        errors.append(float(forecast) / figures.live(config) - 1)
        ratios = [f"{ratio:.3f}" for ratio in figures.throughput(config)]
        bytes_ = [format_bytes(figures.live(config)), format_bytes(round(float(forecast))), f"{errors[-1]:+.1%}"]
        seconds = f"{figures.compile_seconds[config]:.1f} s"
        measured.add_row(figures.space.describe(config), *ratios, *bytes_, seconds)
    off = [abs(error) for error in errors]
    measured.caption = f"forecasts: off by {statistics.median(off):.1%} in the median, {max(off):.1%} at worst"
    yield measured
    least, most = min(map(figures.peak, everything)), figures.peak(Config())
    answers = Table(title=f"{title}: the answer beside what is set by hand; trials with the compiler by itself")
    told = [column for name in searches for column in (f"answer of {name}", "trials")]
    for column in ("limit", "best budget", "best k of N", *told):
        answers.add_column(column)
    for share in LIMITS:
        limit_bytes = round(least + share * (most - least))
        best = [words(figures, figures.fastest(configs, limit_bytes)) for configs in (budgets, counts)]
        found = [figures.search(name, limit_bytes) for name in searches]
        row = [text for answer, trials in found for text in (words(figures, answer), str(trials))]
        answers.add_row(f"{share:.0%}", *best, *row)
    yield answers


def compile_twice(title, job, batch):
    """What a few configs take to be compiled in the first process of a study, and in the next one."""
    table = Table(title=f"{title}: compiled in")
    for column in ("config", "the first process", "the next one"):
        table.add_column(column)
    found, names = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            with Bench(job, batch, Path(folder), study=Path(folder)) as bench:
                space = bench.detect().space
                budgets, counts, tags = by_hand(space)
                for config in (Config(), budgets[0], counts[0], tags[0]):
                    measured = bench.measure(config, EFFORT)
                    found.setdefault(config, []).append(f"{measured.compile_seconds:.1f} s")
                    names[config] = space.describe(config)
        forget_compiled_code(Path(folder))
    for config, seconds in found.items():
        table.add_row(names[config], *seconds)
    return table


def main():
    """All studies, or the one that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="*", default=NAMES, help="names in studies/ (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default 2)")
    parser.add_argument("--hidden", type=int, default=64, help="(default 64)")
    parser.add_argument("--batch", type=int, default=32, help="(default 32)")
    parser.add_argument("--rounds", type=int, default=3, help="one tells peaks, and throughput roughly (default 3)")
    parser.add_argument("--greedy", action="store_true", help="the greedy search as well: twice as many compilations")
    parser.add_argument("--caches", action="store_true", help="only what a config takes in the next process")
    args = parser.parse_args()
    searches = (MODEL, GREEDY) if args.greedy else (MODEL,)
    for name in args.studies:
        sizes = ("--layers", str(args.layers), "--hidden", str(args.hidden), *SMALL.get(name, OF_TEXTS))
        job = Job(script=STUDIES / name / "train.py", arguments=(*UNENDING, "--compile", *sizes), backend="torch")
        if args.caches:
            Console(width=200).print(compile_twice(name, job, args.batch))
            continue
        title = f"{name} {' '.join(sizes)}, batch {args.batch}"
        # Its own caches begin empty: what is read from those of an earlier run would make each trial seem cheap.
        with tempfile.TemporaryDirectory() as folder:
            with Bench(job, args.batch, Path(folder), study=Path(folder)) as bench:
                for table in tables(title, Figures(bench, args.rounds), searches):
                    Console(width=200).print(table)
            forget_compiled_code(Path(folder))


if __name__ == "__main__":
    main()
