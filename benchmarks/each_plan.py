"""What each plan does to a training by itself: ``python benchmarks/each_plan.py [OPTIONS] SCRIPT -- ARGUMENTS``.

The script is trained on a worker, as a tuning does it, without a limit: without recompute, under each preset, and under
each plan alone, at as many occurrences as it has. Times are of a few steps each, one config after another, so they say
little on a machine that others use. The last line compares the gradients of all plans together with those without.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from autorecompute.backends import registry
from autorecompute.measurement import GradientCheck
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import format_bytes

ONCE = Effort(warmup=2, steps=8)


def told(size):
    """Bytes with their unit."""
    return "-" if size is None else format_bytes(size)


def describe(name, found):
    """A line for a measurement."""
    peak, allocated = map(told, (found.peak_bytes, found.allocated_bytes))
    speed = "-" if found.samples_per_second is None else f"{found.samples_per_second:.1f}"
    return f"{name:<66} {found.outcome.value:>6} {peak:>10} {allocated:>10} {speed:>9}  {', '.join(found.marks)}"


def main():
    """Prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", type=Path, help="the training script")
    parser.add_argument("--batch", type=int, default=8, help="target batch (default 8)")
    parser.add_argument(
        "--backend", choices=[one.NAME for one in registry.controllers()], default="torch", help="(default torch)"
    )
    parser.add_argument("arguments", nargs="*", help="arguments of the script, after --")
    args = parser.parse_args()
    job = Job(script=args.script, arguments=tuple(args.arguments), backend=args.backend)
    with tempfile.TemporaryDirectory() as folder, Bench(job, args.batch, Path(folder)) as bench:
        space = bench.detect().space
        presets = {f"preset {name}": config for name, config in space.presets.items()}
        alone = {plan.label: Config(frozenset(plan.choices)) for plan in space.plans}
        print(f"{'batch ' + str(args.batch):<66} {'':>6} {'peak':>10} {'allocated':>10} {'samples/s':>9}")
        for name, config in {**presets, **alone}.items():
            print(describe(name, bench.measure(config, ONCE)), flush=True)
        check = bench.check(space.all_on)
    if isinstance(check, GradientCheck):
        agrees = "agree" if check.agrees else f"differ: {check.message or check.parameter}"
        print(f"gradients of all plans together {agrees}; the largest difference is {check.worst:.1e}")


if __name__ == "__main__":
    main()
