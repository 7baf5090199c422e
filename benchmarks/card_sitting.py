"""The checks that are owed on a real card, in order of value: ``make card-sitting``.

Each check has a process of its own and a bound, and what it printed is kept as it ends, in
``benchmarks/printed/sitting-NAME.txt``. The next call goes on with those that are not kept yet, so a card that is at
hand for nine minutes is enough to begin. ``CHECK=NAME`` runs one that is kept again. Tuned are unmodified scripts, with
the command that a user gives; nothing but that command and the bench touches the card.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from by_hand import STUDIES, told_ratio
from card_tuning import race

from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search import needs_in
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import GIB, format_bytes

PRINTED = Path(__file__).parent / "printed"
TRAINER = Path(__file__).parent / "card_trainer.py"
BATCH = 16
MINUTES = 9.0
LEAST_SECONDS = 60.0
"""With less time left no check is begun."""

LLAMA = "--layers 16 --hidden 2048 --heads 16 --key-value-heads 4 --sequence 2048 --autocast"
LARGER_LLAMA = "--layers 24 --hidden 2304 --heads 18 --key-value-heads 6 --sequence 2048 --autocast"
SMALLER_LLAMA = "--layers 12 --hidden 1024 --heads 16 --key-value-heads 4 --sequence 1024 --autocast"
DEBERTA = "--layers 24 --hidden 1024 --heads 16 --sequence 512 --buckets 256"

BRIEFLY = Effort(warmup=2, steps=3)
SHARES = (0.40, 0.65)
"""Limits, as shares of the way from all blocks to no recompute."""

ROUNDS = 10
TUNING_SECONDS = 150


def study(name, sizes):
    """The job of a study at these sizes."""
    return Job(script=STUDIES / name / "train.py", arguments=tuple(sizes.split()), backend="torch")


def tune(job, limit_bytes=None, batch=BATCH, **variables):
    """Tune as a user would, print what it said, and give the answer's JSON."""
    limit = [] if limit_bytes is None else ["--memory-limit", str(limit_bytes)]
    command = [sys.executable, "-m", "autorecompute", "tune", str(job.script), "--target-batch", str(batch), *limit]
    command += ["--timeout", f"{TUNING_SECONDS}s", "--fresh", "--json", "--", *job.arguments]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | variables
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, check=False, text=True)
    told = json.loads(done.stdout or "{}")
    answer = (told.get("result") or told).get("best")
    found = "no answer" if answer is None else f"{answer['description']}, {answer['samples_per_second']:.1f} samples/s"
    print(f"  {found}, after {time.perf_counter() - began:.0f} s, exit code {done.returncode}", flush=True)
    return answer


def measured(bench, configs):
    """Each config in a few steps, printed."""
    space, found = bench.detect().space, {}
    for config in dict.fromkeys(configs):
        found[config] = one = bench.measure(config, BRIEFLY)
        speed = "-" if one.samples_per_second is None else f"{one.samples_per_second:.1f} samples/s"
        print(f"  {space.describe(config):<50} {format_bytes(one.peak_bytes):>9} {speed} {one.outcome}", flush=True)
    return found


def allocators():
    """A Llama at 24 GiB: PyTorch's default segments against those that grow."""
    for setting in ("expandable_segments:False", ""):
        print(f"{setting or 'as tune sets it'}:", flush=True)
        variables = {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting} if setting else {}
        tune(study("llama_clm", LLAMA), 24 * GIB, **variables)


def by_hand():
    """A Llama of a billion weights at two limits, beside what people set by hand."""
    job = study("llama_clm", LARGER_LLAMA)
    with tempfile.TemporaryDirectory() as logs, Bench(job, BATCH, Path(logs)) as bench:
        space = bench.detect().space
        blocks = space.presets["blocks"]
        (plan,) = space.plans_of(blocks)
        some = [Config(frozenset(plan.chosen(count))) for count in range(4, plan.occurrences, 4)]
        tried = measured(bench, [Config(), blocks, space.presets["every_2nd_block"], *some])
    # Without recompute it may not fit: what takes most of what does stands for it.
    peaks = [found.peak_bytes for found in tried.values() if found.peak_bytes]
    least, most = min(peaks), max(peaks)
    for share in SHARES:
        limit_bytes = round(least + share * (most - least))
        print(f"limit {format_bytes(limit_bytes)}", flush=True)
        answer = tune(job, limit_bytes)
        if answer is None:
            continue
        fitting = [config for config, found in tried.items() if found.under(limit_bytes).outcome is Outcome.OK]
        best = min(fitting, key=lambda config: tried[config].median_step_seconds)
        compare(job, Config.parse(answer["config"]), {"the best by hand": best, "all blocks": blocks})


def compare(job, config, others):
    """The answer and others in mirrored rounds in one process."""
    with tempfile.TemporaryDirectory() as logs, Bench(job, BATCH, Path(logs)) as bench:
        times = race(bench, list(dict.fromkeys([config, *others.values()])), ROUNDS, BRIEFLY)
    for name, other in others.items():
        ratio = told_ratio([theirs - own for own, theirs in zip(times[config], times[other], strict=True)])
        print(f"  samples/s of the answer over those of {name}: {ratio}", flush=True)


def trainer():
    """Hugging Face's Trainer in bfloat16 at 14 GiB."""
    tune(Job(script=TRAINER, backend="torch"), 14 * GIB)


def forecasts():
    """Forecasts of reserved bytes beside measured ones, of presets and of parts of all blocks."""
    job = study("llama_clm", LLAMA)
    with tempfile.TemporaryDirectory() as logs, Bench(job, BATCH, Path(logs)) as bench:
        memory = TorchMemoryModel.of(bench.detect())
        space, needs_of = memory.space, needs_in(memory, memory.dims, bench.whole_step)
        (plan,) = space.plans_of(space.presets["blocks"])
        some = [Config(frozenset(plan.chosen(count))) for count in (2, 4, 8, 12)]
        found = measured(bench, [*space.presets.values(), *some])
        for config, one in found.items():
            if one.peak_bytes:
                told = needs_of(config, memory.forecast(config, memory.dims).peak_bytes)
                off = told / one.peak_bytes - 1
                print(f"  {space.describe(config):<50} forecast {format_bytes(told)} ({off:+.1%})", flush=True)


def headline():
    """A DeBERTa at 40 GiB: twice the batch with recompute beside a batch of 16 without."""
    job = study("deberta_mlm", DEBERTA)
    ways = {"plain PyTorch": job}
    if importlib.util.find_spec("onnxruntime") is not None:
        arguments = (*job.arguments, "--ortmodule")
        ways["ORTModule"] = Job(script=job.script, arguments=arguments, backend="ortmodule")
    for name, way in ways.items():
        print(name, flush=True)
        with tempfile.TemporaryDirectory() as logs, Bench(way, BATCH, Path(logs)) as bench:
            without = measured(bench, [Config()])[Config()]
        answer = tune(way, 40 * GIB, 2 * BATCH)
        if answer is not None and without.samples_per_second:
            print(f"  {answer['samples_per_second'] / without.samples_per_second:.2f}x batch {BATCH} without recompute")


def compiled():
    """A compiled Llama, half way between all blocks and no recompute of the plain one."""
    tune(study("llama_clm", f"{SMALLER_LLAMA} --compile"), 6 * GIB)


def twice():
    """Twice the batch in the memory that a batch takes without recompute."""
    job = study("llama_clm", SMALLER_LLAMA)
    with tempfile.TemporaryDirectory() as logs, Bench(job, BATCH // 2, Path(logs)) as bench:
        half = measured(bench, [Config()])[Config()]
    answer = tune(job, half.peak_bytes)
    if answer is not None:
        print(f"  {answer['samples_per_second'] / half.samples_per_second:.2f}x batch {BATCH // 2} without recompute")


CHECKS = {
    allocators: 330,
    by_hand: 480,
    trainer: 170,
    forecasts: 120,
    headline: 240,
    compiled: 170,
    twice: 200,
}
"""Seconds that each may take, in the order in which they run."""


def head(name):
    """Software and card of the figures."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        card = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        card = "no NVIDIA driver"
    told = f"torch {version('torch')}, Python {platform.python_version()}, {card}, {os.cpu_count()} cores"
    return f"{name}: {told}; {dt.datetime.now(dt.UTC).date()}\n\n"


def run(name, seconds):
    """Run a check, show what it prints and keep it; tell whether it ended by itself."""
    command = ["timeout", f"{seconds:.0f}", sys.executable, __file__, "--inside", name]
    kept = [head(name)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            sys.stdout.write(line)
            kept.append(line)
    if process.returncode:
        kept.append(f"ended with {process.returncode}\n")
    file = PRINTED / f"sitting-{name}{'-cut' * bool(process.returncode)}.txt"
    file.write_text("".join(kept), encoding="utf-8")
    return process.returncode == 0


def main():
    """Run what is not kept yet, as long as there is time."""
    names = {check.__name__: check for check in CHECKS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", nargs="?", choices=list(names), help="(default: all that are not kept)")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of a slower clock than a card's")
    parser.add_argument("--inside", choices=list(names), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        names[asked.inside]()
        return
    ends = time.monotonic() + 60 * asked.minutes
    for name, check in names.items():
        is_due = name == asked.check if asked.check else not (PRINTED / f"sitting-{name}.txt").is_file()
        left = ends - time.monotonic()
        if is_due and left >= LEAST_SECONDS:
            print(f"\n{name}: {check.__doc__}", flush=True)
            run(name, min(left, CHECKS[check] * asked.minutes / MINUTES))


if __name__ == "__main__":
    main()
