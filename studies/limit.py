"""Prints a memory limit under which a study has to recompute, for the machine that it runs on.

It lies 60 % of the way from what the process holds at rest to its peak without recompute, or another ``--share`` of it.
Both are measured, since they differ from processor to processor. The script's arguments follow ``--``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.units import MIB

LIMIT_SHARE = 0.6


def choose_limit(resting_bytes: float, peak_bytes: float, share: float = LIMIT_SHARE) -> int:
    return int(resting_bytes + share * (peak_bytes - resting_bytes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs="*", help="the script's own")
    parser.add_argument("--batch", type=int, default=32, help="samples a step (default 32)")
    parser.add_argument("--share", type=float, default=LIMIT_SHARE, help="of the way to the peak (default 0.6)")
    args = parser.parse_args()
    job = Job(script=args.script, arguments=tuple(args.arguments))
    with tempfile.TemporaryDirectory() as logs, Bench(job, args.batch, Path(logs)) as bench:
        resting_bytes = bench.detect().resting_bytes
        measurement = bench.measure(Config(), Effort())
    if measurement.peak_bytes is None:
        raise SystemExit(f"no peak was measured: {measurement.message}")
    print(f"{choose_limit(resting_bytes, measurement.peak_bytes, args.share) // MIB}MiB")


if __name__ == "__main__":
    main()
