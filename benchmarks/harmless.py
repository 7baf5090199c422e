"""Holds trainings whose configs are swapped while they train beside the same without: ``make bench-harmless``.

Losses, final weights, states of optimizers, buffers and random numbers have to be equal bit for bit, over all training
scripts of the tests.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from swapped import LEFT_ALONE, MORE, TUNED, train_beside, train_plainly


def hold(command):
    """Trains both ways and prints what came out; whether they are the same."""
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        plain, beside = train_plainly(command, Path(first)), train_beside(command, Path(second))
    is_same = (plain.code, plain.digests) == (beside.code, beside.digests) and "weights" in plain.stdout
    print(f"{command:40} {'equal' if is_same else 'DIFFERENT':10} {len(beside.configs)} configs", flush=True)
    if not is_same:
        print(plain.stderr[-500:], beside.stderr[-1500:], sep="\n---\n")
    return is_same


def main():
    """One line for each script."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", default=[*TUNED, *LEFT_ALONE, *MORE], help="all where none is named")
    args = parser.parse_args()
    same = [hold(command) for command in args.commands]
    print(f"{sum(same)} of {len(same)} trainings equal bit for bit")
    sys.exit(not all(same))


if __name__ == "__main__":
    main()
