"""A parser that repeats no address, which may hold a password, and knows options by their whole names alone."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.paths import shown
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_ADDRESS = re.compile(r"(?<![\w+.-])[\w+.-]*://.*", re.DOTALL)
_WITH_PASSWORD = re.compile(r"://.*(@|password=)", re.DOTALL)
_STORAGE = "--storage"
REST = "rest"
"""What the script's arguments are called among those of a verb."""


class Parser(argparse.ArgumentParser):
    """What :mod:`argparse` parses with; its subparsers are of the same kind."""

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
        """Return where arguments of the script are written; empty for a verb that takes none."""
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


def add_rest(parser: argparse.ArgumentParser) -> None:
    """Add the script's arguments to the help: what follows ``--`` is taken away before the parser sees it."""
    parser.add_argument(REST, nargs="*", default=(), metavar="-- ARGUMENT", help="arguments of the script")


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
