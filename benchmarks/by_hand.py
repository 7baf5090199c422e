"""The answers of the search beside the best that people do by hand, in plain PyTorch: ``make bench-by-hand``.

By hand means: no recompute, all blocks, the first k blocks for every k, and the same with matrix products kept. All of
them are measured, and the fastest that fits is taken, so this hand knows all peaks and times. At each of several limits
between the least peak and that without recompute the search begins anew. Its answer, the best by hand and all blocks
then train in turns, a step of each at a time. Peaks are bytes of live tensors, times are processor time. Arguments name
studies.
"""

from __future__ import annotations

import math
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from autorecompute.backends import registry
from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import measure_in_turns
from autorecompute.tuning.intervals import centre, interval

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = (
    "llama_clm",
    "gpt2_clm",
    "bert_mlm",
    "t5_seq2seq",
    "vit_images",
    "bloom_clm",
    "deberta_mlm",
    "resnet_images",
)
TARGET_BATCH = 16

LIMITS = (0.25, 0.40, 0.55, 0.70, 0.85)
"""Shares of the way from the least peak to that without recompute."""

TURNS, RACE_TURNS = 4, 12
"""Steps of each config, beside one without recompute, and of each of those that are compared in the end."""

MISS = 0.025
MOST_TRIALS = 30


class Hand:
    """Measures configs of one study, each once, beside steps without recompute.

    Args:
        bench: Where they are measured.

    Attributes:
        trials: Those that were measured, by their configs.
    """

    def __init__(self, bench):
        self.bench = bench
        self.detection = bench.detect()
        self.trials = {}

    def measure(self, config):
        """The trial of a config."""
        if config not in self.trials:
            found = measure_in_turns(self.bench, [Config(), config], TURNS)
            reference, measurement = found[Config()], found[config]
            self.trials[config] = Trial(
                number=len(self.trials),
                config=config,
                description=self.detection.space.describe(config),
                reason="",
                measurement=measurement,
                # In processor time, which is what other work on the machine changes least.
                reference_seconds=reference.median_cpu_seconds,
                reference_cpu_seconds=reference.median_cpu_seconds,
                is_reference_disturbed=True,
            )
        return self.trials[config]

    def by_hand(self):
        """What people try: the first k blocks, whole or with their matrix products kept."""
        blocks = self.detection.space.presets["blocks"], self.detection.space.presets.get("keep_matmul", Config())
        plans = {plan for preset in blocks for plan in self.detection.space.plans_of(preset)}
        counts = [Config(frozenset(plan.chosen(k))) for plan in plans for k in range(1, plan.occurrences + 1)]
        return [self.measure(config) for config in dict.fromkeys([Config(), *counts, *blocks])]

    def search(self, limit_bytes):
        """The fastest config that a new search finds under a limit, and its trials."""
        detection = self.detection
        memory = registry.controller("torch").memory_of(detection)
        dims = {**detection.dims, BATCH: detection.batch}
        searcher = ModelSearcher(detection.space, limit_bytes=limit_bytes, memory=memory, dims=dims)
        trials = []
        while len(trials) < MOST_TRIALS and (proposal := searcher.propose(trials)) is not None:
            trials.append(self.measure(proposal.config).under(limit_bytes))
        steps = searcher.expect_steps(trials)
        fitting = [trial for trial in trials if trial.fits]
        return min(fitting, key=lambda trial: steps[trial.number], default=None), len(trials)

    def race(self, configs):
        """Logarithms of processor time a step, a list for each config, one entry a turn."""
        found = measure_in_turns(self.bench, configs, RACE_TURNS)
        return {config: [math.log(seconds) for seconds in measured.cpu_seconds] for config, measured in found.items()}


def fastest(trials):
    """The best that was measured among those that fit."""
    return max((trial for trial in trials if trial.fits), key=lambda trial: trial.relative_throughput, default=None)


def beside(times, one, other):
    """How much faster one config is than another, with its interval."""
    if one == other:
        return "same"
    return told_ratio([b - a for a, b in zip(times[one], times[other], strict=True)])


def told_ratio(logarithms):
    """A ratio whose logarithms these are, with its interval, which is widened to hold it where noise is skewed."""
    middle, found = centre(logarithms), interval(logarithms, MISS)
    low, high = min(found.low, middle), max(found.high, middle)
    return f"{math.exp(middle):.2f} ({math.exp(low):.2f}-{math.exp(high):.2f})"


def rows(hand):
    """A row for each limit."""
    tried = hand.by_hand()
    space = hand.detection.space
    least = min(hand.measure(config).measurement.peak_bytes for config in (space.all_on, space.presets["blocks"]))
    most = hand.measure(Config()).measurement.peak_bytes
    for share in LIMITS:
        limit_bytes = round(least + share * (most - least))
        best = fastest([trial.under(limit_bytes) for trial in tried])
        answer, trials = hand.search(limit_bytes)
        if best is None or answer is None:
            told = " ".join(answer.config.texts) if answer else "none fits"
            yield [f"{share:.0%}", best.description if best else "none fits", told, str(trials), "-", "-"]
            continue
        blocks = space.presets["blocks"]
        times = hand.race(list(dict.fromkeys([answer.config, best.config, blocks])))
        told = [beside(times, answer.config, other) for other in (best.config, blocks)]
        yield [f"{share:.0%}", best.description, " ".join(answer.config.texts), str(trials), *told]


def main(names):
    """All studies, or those that are named."""
    for name in names or NAMES:
        job = Job(script=STUDIES / name / "train.py", arguments=("--device", "cpu"), backend="torch")
        table = Table(title=f"{name}: throughput of the answer over that of others")
        for column in ("limit", "best by hand", "answer", "trials", "answer / hand", "answer / all blocks"):
            table.add_column(column)
        with tempfile.TemporaryDirectory() as logs, Bench(job, TARGET_BATCH, Path(logs)) as bench:
            for row in rows(Hand(bench)):
                table.add_row(*row)
        Console(width=200).print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
