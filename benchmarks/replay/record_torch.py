"""Records tables of configs in plain PyTorch: ``make record-torch-tables``.

There are far too many configs to measure all. Those that are measured are spread over the peaks that are simulated:
from each range of peaks those that should compute least, and as many by chance, beside what people do by hand. Each is
timed beside no recompute, in processor time, in random order, and those that may be the best under some limit again in
later rounds. The recorder appends to a journal and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.search.candidates import Candidates, choices_of
from autorecompute.trials import Bench, Job
from autorecompute.trials.bench import measure_in_turns
from autorecompute.trials.job import Effort
from journal import Journal
from record import STUDIES, TABLES, set_up_workers

TOGETHER, TURNS = 2, 3
"""So many configs are timed in turns with none, and so many steps of each."""

RANGES, OF_EACH = 30, 15
"""So many ranges of peaks; from each of them so many cheap configs, and as many by chance."""

SLACKS = (0.06, 0.04, 0.04)
"""What is within this share of the best under some limit is measured again, a round for each."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a table is recorded of.

    Attributes:
        study: The folder of the training script.
        batch: Samples a step.
        arguments: Sizes of the model.
    """

    study: str
    batch: int
    arguments: tuple[str, ...]


_UNENDING = ("--device", "cpu", "--steps", "1000000")
_SIZES = (*_UNENDING, "--layers", "8", "--hidden", "96")
RECIPES = {
    "torch_llama": Recipe("llama_clm", 16, (*_SIZES, "--sequence", "64")),
    "torch_gpt2": Recipe("gpt2_clm", 16, (*_SIZES, "--sequence", "64")),
    "torch_bert": Recipe("bert_mlm", 16, (*_SIZES, "--sequence", "64")),
    "torch_vit": Recipe("vit_images", 16, _SIZES),
    "torch_t5": Recipe("t5_seq2seq", 16, (*_UNENDING, "--layers", "4", "--hidden", "96", "--sequence", "64")),
}
"""The last one is recorded last: nothing in the search was set by it."""


def list_configs(space, simulated):
    """Configs over all peaks: the cheapest of each range, as many by chance, presets and every count of each plan."""
    chance = np.random.default_rng(0)
    candidates = Candidates(space, simulated)
    peaks, work = candidates.simulated.peak_bytes, candidates.simulated.recompute_share
    edges = np.linspace(peaks.min(), peaks.max() + 1, RANGES + 1)
    found = list(space.presets.values())
    for plan in space.plans:
        counts = range(1, plan.occurrences + 1) if plan.counts else [None]
        found += [Config(frozenset(plan.chosen(count))) for count in counts]
    for low, high in itertools.pairwise(edges):
        (inside,) = np.nonzero((peaks >= low) & (peaks < high))
        cheapest = inside[np.argsort(work[inside], kind="stable")][:OF_EACH]
        others = np.setdiff1d(inside, cheapest)
        drawn = chance.permutation(others)[:OF_EACH]
        found += [candidates.config(int(place)) for place in (*cheapest, *drawn)]
    return [config for config in dict.fromkeys([Config(), *found]) if config in candidates.places]


class Recorder:
    """Measures configs of one table on a bench, some at a time in turns with none.

    A process holds some KiB more after each of a thousand configs. So a peak is what was held without recompute at
    first, and the bytes of live tensors beyond that.

    Args:
        bench: Where they are measured.
        journal: Where to.
        configs: Which.
    """

    def __init__(self, bench, journal, configs):
        self._bench, self._journal = bench, journal
        self._configs = {config.hash: config for config in configs}
        first = bench.measure(Config(), Effort())
        self._held_bytes = journal.head["peak_bytes"] - first.allocated_bytes

    def run(self):
        """Measures what is left."""
        self._measure_round(list(self._configs), 0)
        for number, slack in enumerate(SLACKS, 1):
            self._measure_round(find_front(self._journal.rows, slack), number)

    def _measure_round(self, hashes, number):
        done = {row["config"] for row in self._journal.rows if row["round"] == number}
        left = [key for key in sorted(hashes) if key not in done]
        random.Random(number).shuffle(left)
        for place in range(0, len(left), TOGETHER):
            self._measure(left[place : place + TOGETHER], number)
            if place % 50 == 0:
                print(f"round {number}: {place} of {len(left)}", flush=True)

    def _measure(self, hashes, number):
        found = measure_in_turns(self._bench, [Config(), *(self._configs[key] for key in hashes)], TURNS)
        reference_seconds = statistics.mean(found[Config()].cpu_seconds)
        for key in hashes:
            measured = found[self._configs[key]]
            self._journal.add(
                {
                    "config": key,
                    "round": number,
                    "outcome": str(measured.outcome),
                    "peak_bytes": self._held_bytes + measured.allocated_bytes,
                    "seconds": [round(seconds, 6) for seconds in measured.cpu_seconds],
                    "reference_seconds": round(reference_seconds, 6),
                }
            )


def find_front(rows, slack):
    """The configs that may be the fastest under some limit."""
    times, peaks = {}, {}
    for row in rows:
        times.setdefault(row["config"], []).append(statistics.mean(row["seconds"]) / row["reference_seconds"])
        peaks[row["config"]] = row["peak_bytes"]
    points = sorted((peaks[key], statistics.median(found), key) for key, found in times.items())
    best, front = float("inf"), []
    for _, time, key in points:
        best = min(best, time)
        if time <= best * (1 + slack):
            front.append(key)
    return front


def begin(bench, recipe):
    """The head of a table: what is measured, where, and what is known before any trial."""
    detection = bench.detect()
    memory = registry.controller("torch").memory_of(detection)
    simulator = memory.simulator({**detection.dims, BATCH: recipe.batch}, choices_of(detection.space))
    configs = list_configs(detection.space, simulator)
    return {
        "study": recipe.study,
        "arguments": list(recipe.arguments),
        "batch": recipe.batch,
        "is_sampled": True,
        "threads": 1,
        "effort": {"warmup": 1, "steps": TURNS},
        "peak_bytes": bench.measure(Config(), Effort()).peak_bytes,
        "plans": [plan.id for plan in detection.space.plans],
        "detection": codec.to_plain(detection),
        "survey": None,
        "configs": {config.hash: config.texts for config in configs},
    }


def record(name):
    """Records one table, or what is left of it."""
    recipe, journal = RECIPES[name], Journal(TABLES / f"{name}.journal")
    job = Job(script=STUDIES / recipe.study / "train.py", arguments=recipe.arguments, backend="torch")
    with tempfile.TemporaryDirectory() as logs, Bench(job, recipe.batch, Path(logs)) as bench:
        if journal.head is None:
            journal.begin(begin(bench, recipe))
        configs = [Config.parse(texts) for texts in journal.head["configs"].values()]
        print(f"{name}: {len(configs)} configs", flush=True)
        Recorder(bench, journal, configs).run()


def main():
    """Records the tables that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*RECIPES, []])
    tables = parser.parse_args().tables or list(RECIPES)
    set_up_workers()
    for name in tables:
        record(name)


if __name__ == "__main__":
    main()
