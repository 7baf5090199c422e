"""Command lines: what several verbs take."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends.registry import AUTO, PACKAGES, plain_name
from autorecompute.errors import UsageError
from autorecompute.files import shown
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

    from autorecompute.trials import Job


_ADDRESS = re.compile(r"(?<![\w+.-])[\w+.-]*://.*", re.DOTALL)
_WITH_PASSWORD = re.compile(r"://.*(@|password=)", re.DOTALL)
_STORAGE = "--storage"
REST = "rest"
"""Name of the script's arguments among those of a verb."""


class Parser(argparse.ArgumentParser):
    """Parser of the command line; its subparsers are of the same kind."""

    def __init__(self, **options: Any) -> None:
        # A short form means something else as soon as there is another option that begins like it.
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse. What is left over is told by the verb itself, and not by the program.

        Raises:
            UsageError: something is left over.
        """
        found, others = super().parse_known_args(args, namespace)
        strangers = [*vars(found).get(REST, ()), *others]
        if strangers:
            self.error(f"unrecognized arguments: {' '.join(strangers)}{self._hint(found, args, strangers)}")
        return found, others

    def _hint(self, found: argparse.Namespace, args: Sequence[str], strangers: Sequence[str]) -> str:
        """Tell where to write the script's arguments; empty for a verb that takes none."""
        if REST not in found:
            return ""
        hint, script = ". Arguments of the script come after --", str(found.script)
        if args[0] != script:
            return hint
        between = [] if len(args) == 1 + len(strangers) else ["..."]
        return f"{hint}: {' '.join([self.prog, shlex.quote(script), *between, '--', shlex.join(strangers)])}"

    def error(self, message: str) -> NoReturn:
        """Print how the verb is used; the message is on one line, and cut where an address begins.

        Raises:
            UsageError: always.
        """
        self.print_usage(sys.stderr)
        text = printable(_ADDRESS.sub("(an address, not repeated: it may hold a password)", message), "")
        raise UsageError(f"{text[:1].upper()}{text[1:].rstrip('.')}. See: {self.prog} --help")


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the script and its arguments: what follows ``--`` is taken away before the parser sees it."""
    parser.add_argument("script", metavar="SCRIPT", type=Path, help="the training script")
    parser.add_argument(REST, nargs="*", default=(), metavar="-- ARGUMENT", help="arguments of the script")
    parser.add_argument("-m", dest="is_module", action="store_true", help="SCRIPT is a module, as in python -m")


def require_values(arguments: Sequence[str]) -> None:
    """Check that no option is given ``--`` for a value: argparse takes that away, and the option has a list then.

    Raises:
        UsageError: one is.
    """
    for argument in arguments:
        option, separator, value = argument.partition("=")
        if option.startswith("-") and separator and value == "--":
            raise UsageError(f"{shown(argument)} has no value after the equals sign. Write one that is not --.")


def require_no_stray_address(arguments: Sequence[str]) -> None:
    """Check that an address with a password stands where it is treated as one, and not, for instance, for a script.

    Raises:
        UsageError: it stands elsewhere; it is not repeated.
    """
    for before, argument in zip(["", *arguments], arguments, strict=False):
        is_asked_for = before == _STORAGE or argument.startswith(f"{_STORAGE}=")
        if not is_asked_for and _WITH_PASSWORD.search(argument):
            raise UsageError(
                "An address stands where none is expected; it is not repeated, for it may hold a password. "
                f"Give the storage of a shared study as {_STORAGE} URL."
            )


def add_script_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every verb that starts the user's script takes."""
    add_command(parser)
    parser.add_argument("--batch-flag", metavar="FLAG", help="the script's flag that takes the batch")
    parser.add_argument("--launcher", default="", metavar="COMMAND", help="what starts the script instead of python")
    parser.add_argument(
        "--backend",
        choices=(AUTO, *PACKAGES),
        default=AUTO,
        help="the training system that recomputes (default: the one that the script uses)",
    )
    add_replacement(parser)
    parser.add_argument(
        "--debug-script", action="store_true", help="leave the terminal to the script, for breakpoint() and pdb in it"
    )


def add_replacement(parser: argparse.ArgumentParser) -> None:
    """Add what switches the script's own checkpointing off."""
    parser.add_argument(
        "--replace-checkpointing",
        action="store_true",
        help="switch off the checkpointing that the script does itself, such as gradient_checkpointing=True, and "
        "recompute in its place",
    )


def asked_job(args: argparse.Namespace) -> Job:
    """Return the job that the arguments of every such verb describe.

    Raises:
        UsageError: there is no such script, its launcher cannot be read, or the backend replaces no checkpointing.
    """
    from autorecompute.trials import Job

    if args.replace_checkpointing and args.backend not in {AUTO, plain_name()}:
        raise UsageError(
            f"Only in plain PyTorch the script's checkpointing can be replaced. Leave out --backend {args.backend}, or "
            "--replace-checkpointing."
        )
    return Job(
        script=args.script,
        is_module=args.is_module,
        arguments=tuple(args.rest),
        batch_flag=args.batch_flag,
        launcher=args.launcher,
        backend=args.backend,
        replaces_checkpointing=args.replace_checkpointing,
    )


AUTO_BATCH = "auto"
LONGEST_LABEL = 30


def positive(text: str) -> int:
    """Return a whole number from 1 on."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive number")
    return int(text)


def target_batch(text: str) -> int | str:
    """Return a batch, or that the best one is looked for."""
    if text == AUTO_BATCH:
        return AUTO_BATCH
    if text.strip().isalpha():
        raise argparse.ArgumentTypeError(f"'{text}' is neither a number nor '{AUTO}'")
    return positive(text)


def batch_list(text: str) -> tuple[int, ...]:
    """Return batches that are written as ``8,16,32``, in ascending order; none may come twice."""
    batches = sorted(positive(part) for part in text.split(","))
    for batch, following in pairwise(batches):
        if batch == following:
            raise argparse.ArgumentTypeError(f"batch {batch} is named twice")
    return tuple(batches)


def in_a_name(batches: tuple[int, ...]) -> str:
    """Return the batches in the name of a study: ``8_16_32``, or ``auto``."""
    return "_".join(map(str, batches))[:LONGEST_LABEL] or AUTO_BATCH
