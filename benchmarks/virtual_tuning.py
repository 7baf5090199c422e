"""Whole tunings on cards that exist on paper, beside what is best there: ``make bench-virtual-card``.

Each model is tuned at limits between the least peak by hand and that without recompute: on a card that has more, and on
one that has no more. A row tells the tuning's time by the clock of the card, the processes that it started, those that
ran out of memory, and how much slower its answer is than the best by hand and than the best of all configs that the
tunings tried or a hand would. For that, those are measured without noise. What people do by hand is what ``make
bench-card`` tries. Before them stand forecasts of what a fresh process reserves, beside what presets and single plans
reserve; ``--forecasts`` ends there. Arguments name models. Some minutes a tuning, twenty for the largest.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from by_hand import STUDIES
from card_tuning import ONCE, by_hand
from rich.console import Console
from rich.table import Table

import virtual_card
from autorecompute import codec
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.measurement import Outcome, Trial
from autorecompute.plans import Config
from autorecompute.result import Result
from autorecompute.search import needs_in
from autorecompute.trials import Bench, Job
from autorecompute.tuning.context import RESERVE_BYTES
from autorecompute.units import format_bytes

TARGET_BATCH = 16
MODELS = {
    "Llama 0.7B": "llama_clm --layers 16 --hidden 2048 --heads 16 --key-value-heads 4 --sequence 2048 --autocast",
    "Llama 1.3B": "llama_clm --layers 24 --hidden 2304 --heads 18 --key-value-heads 6 --sequence 2048 --autocast",
    "GPT-2 medium": "gpt2_clm --layers 24 --hidden 1024 --heads 16 --sequence 1024 --autocast",
    "BERT large": "bert_mlm --layers 24 --hidden 1024 --heads 16 --sequence 512 --autocast",
    "ViT-L": "vit_images --layers 24 --hidden 1024 --heads 16 --size 224 --patch 16 --autocast",
    "small Llama": "llama_clm --layers 4 --hidden 1024 --heads 16 --key-value-heads 4 --sequence 1024 --autocast",
}
ALL = [name for name in MODELS if name != "small Llama"]

SINGLE = 6
"""Plans whose forecasts are compared alone."""

LIMITS = (0.3, 0.5, 0.7)
"""Shares of the way from the least peak by hand to that without recompute."""

OUTSIDE_BYTES = virtual_card.CONTEXT_BYTES + RESERVE_BYTES
"""Memory of the card that no limit has."""

CONFIRMING = "confirming in a fresh process"
AT = re.compile(r"\[ *(?:(?P<minutes>\d+) min )?(?P<seconds>[\d.]+) (?P<unit>m?s)\]")


@dataclass(frozen=True)
class Answer:
    """A tuning that ended.

    Attributes:
        result: What it found; ``None`` where nothing was confirmed.
        trials: What it tried.
        spent: What that took.
        confirmed: When the first answer was confirmed, in seconds; ``None`` where none was.
    """

    result: Result | None
    trials: tuple[Trial, ...]
    spent: virtual_card.Spent
    confirmed: float | None


def seconds_at(line):
    """When a line of progress was printed; ``None`` for another line."""
    found = AT.match(line)
    if found is None:
        return None
    seconds = float(found["seconds"]) / (1000 if found["unit"] == "ms" else 1)
    return 60 * int(found["minutes"] or 0) + seconds


def first_confirmed(said):
    """When what follows the first confirmation began."""
    lines = said.splitlines()
    begun = next((place for place, line in enumerate(lines) if CONFIRMING in line), len(lines))
    return next((at for line in lines[begun + 1 :] if (at := seconds_at(line)) is not None), None)


def tune(paper, job, *options):
    """Tune as a user would."""
    arguments = ("tune", str(job.script), "--target-batch", str(TARGET_BATCH), *options, "--", *job.arguments)
    with tempfile.TemporaryDirectory() as folder:
        done, spent = virtual_card.run(replace(paper, clock=f"{folder}/clock"), *arguments, cwd=folder)
        if done.returncode not in {0, 4}:
            raise SystemExit(done.stderr)
        (study,) = Path(folder).glob("studies/*")
        result = codec.decode((study / "result.json").read_bytes(), Result)
        trials = [codec.decode(file.read_bytes(), Trial) for file in study.glob("trials/*/result.json")]
    return Answer(result if result.best else None, tuple(trials), spent, first_confirmed(done.stderr))


@contextmanager
def quiet_bench(paper, job):
    """A bench on the card, without noise."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = replace(paper, clock=f"{folder}/clock", noise=0.0)
        with mock.patch.dict(os.environ, quiet.variables()), Bench(job, TARGET_BATCH, Path(folder)) as bench:
            yield bench


def rows_of(job):
    """A row for each limit on each card."""
    paper = virtual_card.Paper(model="H100", clock="")
    with quiet_bench(paper, job) as bench:
        hand = by_hand(bench)
        known = dict(hand)
        peaks = [found.peak_bytes for found in hand.values() if found.peak_bytes]
        for share in LIMITS:
            limit = round(min(peaks) + share * (max(peaks) - min(peaks)))
            larger = tune(paper, job, "--memory-limit", str(limit))
            exact = tune(replace(paper, total_bytes=limit + OUTSIDE_BYTES), job)
            for trial in (*larger.trials, *exact.trials):
                if trial.config not in known:
                    known[trial.config] = bench.measure(trial.config, ONCE)
            for card, answer in (("larger", larger), ("exact", exact)):
                yield row_of(answer, limit, card, hand, known)


def compare_forecasts(job):
    """Print what a fresh process should reserve, and the tensors alone, beside what is reserved."""
    with quiet_bench(virtual_card.Paper(model="H100", clock=""), job) as bench:
        memory = TorchMemoryModel.of(bench.detect())
        needs_of, space = needs_in(memory, memory.dims, bench.whole_step), memory.space
        alone = [Config.of([plan]) for plan in space.plans[:SINGLE]]
        for config in dict.fromkeys([Config(), *space.presets.values(), *alone]):
            peak, tensors = bench.measure(config, ONCE).peak_bytes, memory.forecast(config, memory.dims).peak_bytes
            off = [f"{told / peak - 1:+.1%}" for told in (needs_of(config, tensors), tensors)]
            print(f"  {space.describe(config):<70} {format_bytes(peak)}: {off[0]}, tensors {off[1]}", flush=True)


def row_of(answer, limit, card, hand, known):
    """One row."""
    seconds = {
        config: found.median_step_seconds for config, found in known.items() if found.under(limit).outcome is Outcome.OK
    }
    best_by_hand = min(seconds[config] for config in hand if config in seconds)
    told = [format_bytes(limit), card, str(answer.spent.out_of_memory), str(answer.spent.starts)]
    told += ["-" if answer.confirmed is None else f"{answer.confirmed:.0f}", f"{answer.spent.seconds:.0f}"]
    if answer.result is None:
        return [*told, "none", "-", "-"]
    config = answer.result.best.config
    own = known[config].median_step_seconds
    over_best = own / min(*seconds.values(), own) - 1
    return [*told, answer.result.best.description, f"{best_by_hand / own:.3f}", f"{over_best:.1%}"]


def main():
    """All models, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forecasts", action="store_true", help="tune nothing")
    parser.add_argument("models", nargs="*", default=ALL, metavar="MODEL", help="all but the small one by default")
    args = parser.parse_args()
    console = Console(width=160)
    for name in args.models:
        study, *sizes = MODELS[name].split()
        job = Job(script=STUDIES / study / "train.py", arguments=tuple(sizes), backend="torch")
        print(name, flush=True)
        compare_forecasts(job)
        if args.forecasts:
            continue
        table = Table(
            "limit", "card", "OOMs", "starts", "confirmed s", "end s", "answer", "over by hand", "regret", title=name
        )
        for row in rows_of(job):
            table.add_row(*row)
            print(" | ".join(row), file=sys.stderr, flush=True)
        console.print(table)


if __name__ == "__main__":
    main()
