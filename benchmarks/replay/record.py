"""Records tables of configs measured one by one, for searches to be replayed on: ``make record-tables``.

Every config of a small model is measured on a live worker, in random order, in windows of a few steps; the reference is
measured again every few configs. Times are processor time of one thread, as other work would be in wall time. Then
those that may be the best under some limit are measured again, round after round, so that what is best does not hang on
luck. The recorder appends to a journal and goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autorecompute import codec
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.tuning.searcher_factory import PROFILED_BATCH, informative_configs, survey
from autorecompute.units import MIB
from journal import Journal

STUDIES = Path(__file__).parents[2] / "studies"
TABLES = STUDIES / "tables"

GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": str(MIB // 16)}
"""Has glibc give back what tensors leave: they are larger, even in models as small as these."""

NEGLIGIBLE_SHARE = 0.005
"""Plans that state to save less of the peak are left out of an exhaustive table."""

UNENDING = ("--ortmodule", "--device", "cpu", "--steps", "1000000")
"""A process that ended would be replaced by another, whose memory begins a little higher or lower."""

EFFORT = Effort(warmup=1, steps=3)
REFERENCE_EVERY = 8
FRONT_ROUNDS = 3
ATTEMPTS, STEADY = 2, 1.3
"""A window whose steps differ by more is measured again; what was disturbed stays in the table as well."""

PRESET_ROUNDS = 6
"""Every search measures the presets, and no sum of plans says what a level takes."""

FRONT_SLACK = 0.06
"""A config within this share of the best under some limit is measured again."""


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


_TEXT = ("--layers", "3", "--hidden", "64", "--sequence", "64")
RECIPES = {
    "bert_mlm": Recipe("bert_mlm", 128, _TEXT),
    "gpt2_clm": Recipe("gpt2_clm", 128, _TEXT),
    "vit_images": Recipe("vit_images", 128, ("--layers", "3", "--hidden", "64")),
    "bloom_clm": Recipe("bloom_clm", 128, _TEXT),
    "deberta_mlm": Recipe(
        "deberta_mlm", 128, ("--layers", "2", "--hidden", "64", "--sequence", "64", "--buckets", "16")
    ),
}


def list_configs(space, dims, peak_bytes):
    """The plans that matter, and all configs of them; presets are among them."""
    plans = [plan for plan in space.plans if (evaluate(plan.saving, dims) or 0) > NEGLIGIBLE_SHARE * peak_bytes]
    presets = list(space.presets.values())
    subsets = itertools.chain.from_iterable(itertools.combinations(plans, count) for count in range(len(plans) + 1))
    return plans, list(dict.fromkeys([*presets, *map(Config.of, subsets)]))


def ratio(row):
    """Step time beside the reference's of the same minutes."""
    return statistics.median(row["seconds"]) / row["reference_seconds"]


def find_front(rows):
    """The configs that may be the fastest under some limit."""
    times, peaks = {}, {}
    for row in rows:
        if row["peak_bytes"] is not None:
            times.setdefault(row["config"], []).append(ratio(row))
            peaks.setdefault(row["config"], []).append(row["peak_bytes"])
    points = sorted((statistics.median(peaks[c]), statistics.median(times[c]), c) for c in times)
    best, front = float("inf"), []
    for _, time, config in points:
        best = min(best, time)
        if time <= best * (1 + FRONT_SLACK):
            front.append(config)
    return front


class Recorder:
    """Measures configs of one table on a bench."""

    def __init__(self, bench, journal, configs, presets):
        self._bench, self._journal = bench, journal
        self._presets = [config.hash for config in presets]
        self._configs = {config.hash: config for config in configs}
        self._age, self._reference = REFERENCE_EVERY, None

    def run(self):
        """Measures what is left."""
        self._measure_round(list(self._configs), 0)
        for number in range(1, FRONT_ROUNDS):
            self._measure_round(find_front(self._journal.rows), number)
        for number in range(FRONT_ROUNDS, FRONT_ROUNDS + PRESET_ROUNDS):
            self._measure_round(self._presets, number)

    def _measure_round(self, hashes, number):
        done = {row["config"] for row in self._journal.rows if row["round"] == number}
        order = sorted(hashes)
        random.Random(number).shuffle(order)
        for place, key in enumerate(key for key in order if key not in done):
            self._measure(key, number)
            if place % 50 == 0:
                print(f"round {number}: {place} of {len(order) - len(done)}", flush=True)

    def _measure(self, key, number):
        for _ in range(ATTEMPTS):
            if self._age >= REFERENCE_EVERY:
                self._reference, self._age = self._measure_reference(), 0
            self._age += 1
            measured = self._bench.measure(self._configs[key], EFFORT)
            self._journal.add(
                {
                    "config": key,
                    "round": number,
                    "outcome": str(measured.outcome),
                    "peak_bytes": measured.peak_bytes,
                    "seconds": [round(seconds, 6) for seconds in measured.cpu_seconds],
                    "reference_seconds": self._reference and round(self._reference, 6),
                }
            )
            if is_steady(measured.cpu_seconds):
                return

    def _measure_reference(self):
        for _ in range(ATTEMPTS):
            measured = self._bench.measure(Config(), EFFORT)
            if is_steady(measured.cpu_seconds):
                break
        return measured.median_cpu_seconds


def is_steady(seconds):
    """Whether nothing seems to have disturbed the steps of one window."""
    return not seconds or max(seconds) <= STEADY * min(seconds)


def begin(job, recipe, logs):
    """The head of a table: what is measured, where, and what an analysis of small steps tells before any trial."""
    with Bench(job, PROFILED_BATCH, logs) as bench:
        found = survey(bench, informative_configs(bench.detect().space))
    with Bench(job, recipe.batch, logs) as bench:
        detection = bench.detect()
        peak_bytes = bench.measure(Config(), Effort()).peak_bytes
    dims = {**detection.dims, BATCH: recipe.batch}
    plans, configs = list_configs(detection.space, dims, peak_bytes)
    return {
        "study": recipe.study,
        "arguments": list(recipe.arguments),
        "batch": recipe.batch,
        "is_sampled": False,
        "threads": 1,
        "effort": {"warmup": EFFORT.warmup, "steps": EFFORT.steps},
        "peak_bytes": peak_bytes,
        "plans": [plan.id for plan in plans],
        "detection": codec.to_plain(detection),
        "survey": {
            "peak_bytes": found.peak_bytes,
            "held_bytes": found.held_bytes,
            "profiles": [
                {"config": config.texts, "profile": codec.to_plain(profile)}
                for config, profile in found.profiles.items()
            ],
        },
        "configs": {config.hash: config.texts for config in configs},
    }


def set_up_workers():
    """Has the workers that this process starts compute with one thread each, and give back what tensors leave."""
    folders = [str(Path(__file__).with_name("one_thread")), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    os.environ |= {"OMP_NUM_THREADS": "1", **GIVEN_BACK}


def record(name):
    """Records one table, or what is left of it."""
    recipe = RECIPES[name]
    job = Job(script=STUDIES / recipe.study / "train.py", arguments=(*UNENDING, *recipe.arguments))
    journal = Journal(TABLES / f"{name}.journal")
    with tempfile.TemporaryDirectory() as logs:
        if journal.head is None:
            journal.begin(begin(job, recipe, Path(logs)))
        if journal.head["batch"] != recipe.batch:
            raise SystemExit(f"{name}.journal was begun at batch {journal.head['batch']}: remove it to begin anew")
        configs = [Config.parse(texts) for texts in journal.head["configs"].values()]
        print(f"{name}: {len(configs)} configs of {len(journal.head['plans'])} plans", flush=True)
        with Bench(job, recipe.batch, Path(logs)) as bench:
            bench.measure(Config(), Effort())
            presets = bench.detect().space.presets.values()
            Recorder(bench, journal, configs, presets).run()


def main():
    """Records the tables that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", choices=[*RECIPES, []], default=list(RECIPES))
    tables = parser.parse_args().tables
    set_up_workers()
    for name in tables:
        record(name)


if __name__ == "__main__":
    main()
