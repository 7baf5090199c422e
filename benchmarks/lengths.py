"""A config for each length of a batch beside one for all: ``make bench-lengths``.

Batches are as long as a distribution says: lognormal with a median of a quarter of the longest, or uniform; batches of
texts of like lengths, as ``group_by_length`` makes them. At each of several limits a search finds the config of the
longest batch, and the configs of shorter ones are chosen and measured as by ``tune --longest``. Then the following
train in turns at lengths spread over the distribution, a step of each at a time: the config of each length, that of the
longest, all blocks, and batches that are padded to the longest. Times are processor time. Arguments name studies.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from by_hand import STUDIES, Hand
from rich.console import Console
from rich.table import Table

from autorecompute.plans import Config
from autorecompute.plans.savings import SEQUENCE
from autorecompute.result import Best
from autorecompute.studies import StudyFolder
from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import measure_in_turns
from autorecompute.trials.job import Effort
from autorecompute.tuning.context import TuningContext, TuningSettings
from autorecompute.tuning.lengths import LengthTuner

NAMES = ("llama_clm", "gpt2_clm", "bert_mlm", "t5_seq2seq")
LONGEST, BATCH = 256, 8
LIMITS = (0.10, 0.40, 0.70)
"""Shares of the way from the least peak to that without recompute."""

SPREAD = 0.7  # standard deviation of the logarithm of a length
SHORTEST, LENGTHS, TURNS = 16, 4, 3
"""Lengths are no shorter; so many of them stand for a distribution, each measured in so many turns."""


def lognormal():
    """Return lengths at even shares of the distribution."""
    shares = [(place + 0.5) / LENGTHS for place in range(LENGTHS)]
    normal = statistics.NormalDist(math.log(LONGEST / 4), SPREAD)
    return [min(max(round(math.exp(normal.inv_cdf(share))), SHORTEST), LONGEST) for share in shares]


def uniform():
    """Return lengths at even shares between the shortest and the longest."""
    return [round(SHORTEST + (LONGEST - SHORTEST) * (place + 0.5) / LENGTHS) for place in range(LENGTHS)]


DISTRIBUTIONS = {"lognormal": lognormal(), "uniform": uniform()}


class Quiet:
    """Watches a tuning."""

    def note(self, text):
        """Print a line beside the table."""
        print(text, file=sys.stderr, flush=True)


def find_policy(hand, job, limit_bytes, folder):
    """Return the config of the longest with those of shorter batches; ``None`` where none holds the limit."""
    answer, _ = hand.search(limit_bytes)
    if answer is None:
        return None
    settings = TuningSettings(limit_bytes=limit_bytes, max_trials=1, timeout_seconds=None, batch=BATCH)
    context = TuningContext(job=job, bench=hand.bench, folder=folder, settings=settings, progress=Quiet())
    context.detect()
    best = Best(
        config=answer.config,
        description=answer.description,
        batch=BATCH,
        samples_per_second=1.0,
        relative_throughput=None,
        peak_bytes=answer.measurement.peak_bytes,
        limit_bytes=limit_bytes,
        confirmed=True,
    )
    tuner = LengthTuner(context, list(hand.trials.values()), best)
    return replace(best, buckets=tuner.measure(), longest=tuner.longest)


def seconds_at(bench, length, configs):
    """Return the processor time of a step of each config at a length."""
    effort = Effort(warmup=1, steps=1, length=length)
    for config in configs:
        bench.measure(config, effort)
    found = measure_in_turns(bench, configs, TURNS)
    return {config: statistics.median(measured.cpu_seconds) for config, measured in found.items()}


def rows(name, job, bench, folder):
    """Yield a row for each limit and distribution."""
    hand = Hand(bench)
    space = hand.detection.space
    blocks = space.presets["blocks"]
    assert hand.detection.dims[SEQUENCE] == LONGEST
    least = min(hand.measure(config).measurement.peak_bytes for config in (space.all_on, blocks))
    most = hand.measure(Config()).measurement.peak_bytes
    for share in LIMITS:
        best = find_policy(hand, job, round(least + share * (most - least)), folder)
        if best is None:
            yield [name, f"{share:.0%}", "none fits", "", "", "", ""]
            continue
        ends = ", ".join(f"{bucket.length}: {bucket.description}" for bucket in best.buckets)
        every = sorted({LONGEST, *itertools.chain(*DISTRIBUTIONS.values())})
        taken = {length: seconds_at(bench, length, configs_at(best, length, blocks)) for length in every}
        for distribution, lengths in DISTRIBUTIONS.items():
            policy = sum(taken[length][config_for(best, length)] for length in lengths)
            others = [
                sum(taken[length][best.config] for length in lengths),
                sum(taken[length][blocks] for length in lengths),
                taken[LONGEST][best.config] * len(lengths),
            ]
            yield [name, f"{share:.0%}", distribution, ends, *(f"{other / policy:.2f}" for other in others)]


def config_for(best, length):
    """Return the config with which a batch of a length trains."""
    return best.config if best.lengths is None else best.lengths.config_for(BATCH, length)


def configs_at(best, length, blocks):
    """Return the configs that are measured at a length."""
    return list(dict.fromkeys([config_for(best, length), best.config, blocks]))


def main(names):
    """All studies, or those that are named."""
    table = Table(title="samples/s with a config for each length, over that of others")
    for column in ("study", "limit", "batches", "buckets", "/ the longest's", "/ all blocks", "/ padded"):
        table.add_column(column)
    ratios = []
    for name in names or NAMES:
        words = ("--device", "cpu", "--sequence", str(LONGEST))
        job = Job(script=STUDIES / name / "train.py", arguments=words, backend="torch", longest=LONGEST)
        with tempfile.TemporaryDirectory() as root, Bench(job, BATCH, Path(root)) as bench:
            folder = StudyFolder("lengths", Path(root) / "studies")
            folder.prepare()
            for row in rows(name, job, bench, folder):
                table.add_row(*row)
                ratios += [float(row[4])] if row[4] else []
    console = Console(width=200)
    console.print(table)
    if ratios:
        console.print(f"over the longest's config: {statistics.median(ratios):.2f} in the median")


if __name__ == "__main__":
    main(sys.argv[1:])
