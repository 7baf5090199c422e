"""The command line: one file a verb, no logic. Torch, optuna and rich are imported by the verbs that need them."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path

from autorecompute import __version__
from autorecompute.cli import check, doctor, emit, plans, report, run, show, studies, train, tune
from autorecompute.cli.output import guard_output
from autorecompute.cli.parsing import Parser, require_no_stray_address, require_values
from autorecompute.errors import AutorecomputeError, InterruptedByUser, ReaderLeft, SetupError, UsageError
from autorecompute.units import printable

BATCH_FLAG = "--batch-flag"
VERBS = (tune, train, plans, show, report, studies, emit, run, check, doctor)
STARTING = (tune, train, plans, run, check)
"""The verbs that start a script or a command: what follows ``--`` is its own."""


def main(argv: list[str] | None = None) -> int:
    """Run one command and give its exit code: see ``autorecompute.errors`` for what each means."""
    guard_output()
    arguments = sys.argv[1:] if argv is None else argv
    try:
        return _run(arguments)
    except ReaderLeft as end:
        return end.exit_code
    except AutorecomputeError as error:
        return _fail(error, arguments)
    except KeyboardInterrupt:
        return _fail(InterruptedByUser("interrupted"), arguments)


def _fail(error: AutorecomputeError, arguments: list[str]) -> int:
    """Say why there is no answer, with ``--json`` on standard output, too."""
    message = printable(str(error))
    print(f"autorecompute: {message}", file=sys.stderr)
    if "--json" in arguments[: _own(arguments)] and not error.has_answer:
        from autorecompute import codec
        from autorecompute.cli.output import Failure

        # Where standard output cannot be written, that is what the message is about.
        with contextlib.suppress(ReaderLeft, SetupError):
            print(codec.dumps(Failure(error=message, exit_code=error.exit_code)), flush=True)
    return error.exit_code


def _own(arguments: list[str]) -> int:
    """Count the arguments that are ours: after ``--`` comes the user's own command, or the script's arguments."""
    return arguments.index("--") if "--" in arguments else len(arguments)


def _run(arguments: list[str]) -> int:
    split = _own(arguments)
    try:
        require_no_stray_address(arguments[:split])
        require_values(arguments[:split])
        args = make_parser().parse_args(_join_flag_value(arguments[:split]))
    finally:
        sys.stdout.flush()  # --help ends right there
    try:
        Path.cwd()
    except OSError as error:
        raise SetupError(f"The working folder cannot be used: {error.strerror}. Go to another one with cd.") from error
    args.rest = arguments[split + 1 :]
    if args.rest and args.run not in {verb.run for verb in STARTING}:
        raise UsageError(
            f"'autorecompute {arguments[0]}' starts no script, so nothing can follow --. Leave out the --."
        )
    # It may hold a password, and is nothing to the scripts that are started from here.
    os.environ.pop(tune.STORAGE_VARIABLE, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = int(args.run(args))
    sys.stdout.flush()
    return code


def _join_flag_value(arguments: list[str]) -> list[str]:
    """Write ``--batch-flag --bs`` as ``--batch-flag=--bs``: argparse takes no value that looks like a flag."""
    joined: list[str] = []
    for argument in arguments:
        if joined and joined[-1] == BATCH_FLAG:
            joined[-1] = f"{BATCH_FLAG}={argument}"
        else:
            joined.append(argument)
    return joined


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser: argparse.ArgumentParser = Parser(
        prog="autorecompute",
        description="Finds by measurement which activations a training job should recompute so that its\nbatch fits.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  autorecompute tune train.py --target-batch 32 --memory-limit 40GiB    what to recompute\n"
        "  autorecompute run STUDY -- python train.py --batch-size 32            train with it\n"
        "  autorecompute train train.py --memory-limit 40GiB                     both in one",
    )
    parser.add_argument("--version", action="version", version=f"autorecompute {__version__}")
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        verb.register(subparsers)
    return parser
