"""What a study may be called: the name of its folder, and a word on the command line."""

from __future__ import annotations

from autorecompute.errors import UsageError
from autorecompute.units import printable

LONGEST_NAME = 200
"""Bytes; a file name may have 255, and drafts of files need a few."""


def is_name(name: str) -> bool:
    """Whether a study may have this name."""
    is_long = len(name.encode(errors="surrogateescape")) > LONGEST_NAME
    return bool(name) and not is_long and "/" not in name and not name.startswith(".") and printable(name, "") == name


def require_name(name: str) -> None:
    """Checks that a study may have this name.

    Raises:
        UsageError: it leads to another place, hides the folder, or changes what a terminal shows.
    """
    if not is_name(name):
        raise UsageError(
            f"'{printable(name, '')}' cannot name a study. Use up to {LONGEST_NAME} letters, digits, dots and dashes; "
            "slashes, control characters and a dot at the beginning cannot be in it."
        )
