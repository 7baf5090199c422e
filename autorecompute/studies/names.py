"""What a study may be called: the name of its folder, and a word on the command line."""

from __future__ import annotations

from autorecompute.errors import UsageError
from autorecompute.paths import shown

LONGEST_NAME = 200
"""Bytes; a file name may have 255, and drafts of files need a few."""

BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufffc"
"""Letters and marks that fonts draw as nothing, though Unicode counts them as printable."""


def is_name(name: str) -> bool:
    """Tell whether a study may have this name."""
    # What is not printable is a control character, a mark that steers the direction of reading, an invisible sign, a
    # space of another width, or a byte that is no UTF-8.
    is_visible = name.isprintable() and name == name.strip() != "" and not any(sign in BLANK for sign in name)
    return is_visible and len(name.encode()) <= LONGEST_NAME and "/" not in name and name[0] not in ".-"


def require_name(name: str) -> None:
    """Check that a study may have this name.

    Raises:
        UsageError: it leads to another place, hides the folder, cannot be seen or typed, or looks like an option.
    """
    if not is_name(name):
        raise UsageError(
            f"{shown(name)} cannot name a study. Use up to {LONGEST_NAME} letters, digits, dots and dashes, without a "
            "slash, an invisible sign, a space at an end, or a dot or dash at the beginning."
        )
