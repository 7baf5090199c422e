"""For ``docker run --env-file``, Compose, systemd and python-dotenv.

Their grammars differ in quotes, in ``$`` and in ``export``: what is written here means the same to all of them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autorecompute.emit.provenance import comment_lines
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@%+:,./=-]+")


def render(result: Result, rendered: Emission) -> str:
    """Comments and a ``NAME=value`` line for each variable.

    Raises:
        UsageError: a value has characters that the grammars disagree about.
    """
    lines = [_assign(name, value) for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *lines]) + "\n"


def _assign(name: str, value: str) -> str:
    if not _PLAIN_VALUE.fullmatch(value):
        raise UsageError(
            f"{name} has the value {value!r}, which dotenv readers do not agree how to read. "
            "Use --format shell, or keep the study in a folder whose path has only letters, digits and /._-."
        )
    return f"{name}={value}"
