"""How ``tune`` is asked for one batch, for several, or for the best one."""

from __future__ import annotations

import argparse
from itertools import pairwise

AUTO = "auto"
LONGEST_LABEL = 30


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options; only one of them can be given."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--target-batch",
        type=target_batch,
        metavar="N",
        help="samples a forward on one device, or 'auto' for the batch with the most samples a second",
    )
    group.add_argument("--batches", type=batch_list, metavar="N,N,...", help="tune and compare exactly these batches")


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def target_batch(text: str) -> int | str:
    """Return a batch, or that the best one is looked for."""
    if text == AUTO:
        return AUTO
    if text.strip().isalpha():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor '{AUTO}'")
    return positive(text)


def batch_list(text: str) -> tuple[int, ...]:
    """Batches as ``8,16,32``, each once, in ascending order."""
    batches = sorted(positive(part) for part in text.split(","))
    for batch, following in pairwise(batches):
        if batch == following:
            raise argparse.ArgumentTypeError(f"batch {batch} is named twice")
    return tuple(batches)


def asked_batches(args: argparse.Namespace) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the batch to begin with, and the batches to compare.

    None for the best one, ``None`` for one batch alone.
    """
    from autorecompute.search.fastest_batch import START

    if args.batches is not None:
        return args.batches[0], args.batches
    return (START, ()) if args.target_batch == AUTO else (args.target_batch, None)


def in_a_name(batches: tuple[int, ...]) -> str:
    """Return the batches in the name of a study: ``8_16_32``, or ``auto``."""
    return "_".join(map(str, batches))[:LONGEST_LABEL] or AUTO
