"""What a verb prints with ``--json`` where it has nothing else to print."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a command has no answer.

    Attributes:
        error: What happened, and what to do next, as on standard error.
        exit_code: The exit code of the command.
    """

    error: str
    exit_code: int
