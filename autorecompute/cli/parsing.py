"""A parser that repeats no address, which may hold a password, and knows options by their whole names alone."""

from __future__ import annotations

import argparse
import re
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


class Parser(argparse.ArgumentParser):
    """What :mod:`argparse` parses with; its subparsers are of the same kind."""

    def __init__(self, **options: Any) -> None:
        # A short form means something else as soon as there is another option that begins like it.
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Prints how the verb is used; the message is on one line, and cut where an address begins.

        Raises:
            UsageError: always.
        """
        self.print_usage(sys.stderr)
        text = printable(_ADDRESS.sub("(an address, not repeated: it may hold a password)", message), "")
        raise UsageError(f"{text[:1].upper()}{text[1:].rstrip('.')}. See: {self.prog} --help")


def require_values(arguments: Sequence[str]) -> None:
    """Checks that no option is given ``--`` for a value: argparse takes that away, and the option has a list then.

    Raises:
        UsageError: one is.
    """
    for argument in arguments:
        option, separator, value = argument.partition("=")
        if option.startswith("-") and separator and value == "--":
            raise UsageError(f"{shown(argument)} has no value after the equals sign. Write one that is not --.")


def require_no_stray_address(arguments: Sequence[str]) -> None:
    """Checks that an address with a password stands where it is treated as one, and not, for instance, for a script.

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
