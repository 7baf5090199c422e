"""The command line: one file a verb, no logic. Torch, optuna and rich are imported by the verbs that need them."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from autorecompute import __version__
from autorecompute.cli import check, doctor, emit, plans, report, run, show, studies, tune
from autorecompute.cli.parsing import Parser, require_no_stray_address
from autorecompute.errors import AutorecomputeError, InterruptedByUser
from autorecompute.units import printable

if TYPE_CHECKING:
    import argparse

BATCH_FLAG = "--batch-flag"
VERBS = (tune, plans, show, report, studies, emit, run, check, doctor)


def main(argv: list[str] | None = None) -> int:
    """Runs one command and gives its exit code: see ``autorecompute.errors`` for what each means."""
    arguments = sys.argv[1:] if argv is None else argv
    # What follows -- is the user's own command or script arguments: argparse must not look at it.
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        require_no_stray_address(arguments[:split])
    except AutorecomputeError as error:
        return _tell(error)
    args = make_parser().parse_args(_join_flag_value(arguments[:split]))
    args.rest = arguments[split + 1 :]
    # It may hold a password, and is nothing to the scripts that are started from here.
    os.environ.pop(tune.STORAGE_VARIABLE, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads, such as head, has seen enough; what Python still holds back has no reader either. As rich ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except AutorecomputeError as error:
        return _tell(error)
    except KeyboardInterrupt:
        print("autorecompute: interrupted", file=sys.stderr)
        return InterruptedByUser.exit_code
    return code


def _tell(error: AutorecomputeError) -> int:
    print(f"autorecompute: {printable(str(error))}", file=sys.stderr)
    return error.exit_code


def _join_flag_value(arguments: list[str]) -> list[str]:
    """Writes ``--batch-flag --bs`` as ``--batch-flag=--bs``: argparse takes no value that looks like a flag."""
    joined = list(arguments)
    for index in [place for place, argument in enumerate(joined[:-1]) if argument == BATCH_FLAG][::-1]:
        joined[index : index + 2] = [f"{BATCH_FLAG}={joined[index + 1]}"]
    return joined


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser: argparse.ArgumentParser = Parser(
        prog="autorecompute",
        description="Finds by measurement which activations a training job should recompute so that its batch fits.",
        epilog="first: autorecompute tune train.py --target-batch 32 --memory-limit 40GiB",
    )
    parser.add_argument("--version", action="version", version=f"autorecompute {__version__}")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(subparsers)
    return parser
