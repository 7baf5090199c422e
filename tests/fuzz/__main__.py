"""``python -m fuzz``, with ``tests`` among the paths of Python: many cases, or one of them again.

``make fuzz N=20000 SEED=2`` runs it; what it finds comes with the line that runs that case again.
"""

from __future__ import annotations

import argparse
import collections
import os

# Cases run in several processes, and threads that wait for each other's processor take many times as long as one.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

import sys
import tempfile
import time
from pathlib import Path

from fuzz import valid
from fuzz.files import BOMBS, bomb
from fuzz.plan import Plan
from fuzz.runner import run_cases

LONGEST = 200


def main():
    """Prints what was wrong, by cause; the exit code is 1 where anything was."""
    args = _parse()
    began = time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a study waits for its disk at every trial
    with tempfile.TemporaryDirectory(prefix="autorecompute-fuzz-", dir=memory) as folder:
        os.environ.update(HOME=folder, TMPDIR=folder)
        tempfile.tempdir = None
        source = Path(folder, "valid")
        source.mkdir()
        valid.begin()
        valid.make_all(source)
        plan = Plan(source, args.seed)
        for kind in BOMBS:
            bomb(kind)
        numbers = list(range(args.cases)) if args.case is None else [args.case]
        print(f"{len(numbers)} of {plan.size} changes, seed {args.seed}", flush=True)
        found = collections.defaultdict(list)
        for number, findings in run_cases(plan, Path(folder), numbers, args.jobs):
            for finding in findings:
                if finding.cause not in found:
                    _print(number, finding, args)
                found[finding.cause].append(number)
    for cause, cases in sorted(found.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(cases)} x {cause}: {sorted(cases)[:5]}")
    print(f"{len(numbers)} cases in {time.monotonic() - began:.0f} s, {len(found)} causes")
    return int(bool(found))


def _parse():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many changes (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="gives their order and what each does (default %(default)s)"
    )
    parser.add_argument("--case", type=int, help="this one alone, with all that is known of it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (default %(default)s)")
    return parser.parse_args()


def _print(number, finding, args):
    print(f"\n{finding.cause}")
    print(f"  make fuzz SEED={args.seed} CASE={number}")
    print(f"  {finding.change[:LONGEST]!r}, then {' '.join(finding.command)[:LONGEST]!r}", flush=True)
    if args.case is not None:
        print(finding.complaint, finding.crash, finding.said, sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
