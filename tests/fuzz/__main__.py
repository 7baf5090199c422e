"""``python -m fuzz``, with ``tests`` among the paths of Python: many cases, or one of them again.

``make fuzz CASES=20000 SEED=2`` runs it; what it finds comes with the line that runs that case again.
"""

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
from fuzz.cases import Plan, run_cases
from fuzz.changes import BOMBS, bomb


def main():
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many changes (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="gives order and changes (default %(default)s)")
    parser.add_argument("--case", type=int, help="this one alone, with all that is known of it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (default %(default)s)")
    args = parser.parse_args()
    numbers = list(range(args.cases)) if args.case is None else [args.case]
    began, found = time.monotonic(), collections.defaultdict(list)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None  # a study waits for its disk at every trial
    with tempfile.TemporaryDirectory(prefix="autorecompute-fuzz-", dir=memory) as folder:
        plan = _prepare(Path(folder), args.seed)
        print(f"{len(numbers)} cases of {plan.size} changes, seed {args.seed}", flush=True)
        for number, findings in run_cases(plan, Path(folder), numbers, args.jobs):
            for finding in findings:
                if finding.cause not in found:
                    print(f"\n{finding.cause}\n  make fuzz SEED={args.seed} CASE={number}\n  {finding.change!r}")
                    print(f"  {finding.command!r:.400}", flush=True)
                if args.case is not None:
                    print(finding.complaint, finding.said, sep="\n", flush=True)
                found[finding.cause].append(number)
    for cause, cases in sorted(found.items(), key=lambda entry: -len(entry[1])):
        print(f"{len(cases)} x {cause}: {sorted(cases)[:5]}")
    print(f"{len(numbers)} cases in {time.monotonic() - began:.0f} s, {len(found)} causes")
    return int(bool(found))


def _prepare(folder, seed):
    os.environ.update(HOME=str(folder), TMPDIR=str(folder))
    tempfile.tempdir = None
    source = folder / "valid"
    source.mkdir()
    valid.begin()
    valid.make_all(source)
    for kind in BOMBS:
        bomb(kind)
    return Plan(source, seed)


if __name__ == "__main__":
    sys.exit(main())
