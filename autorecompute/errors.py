"""The exceptions that end a command, each with the exit code of the command-line contract.

A message says what happened and, in its last sentence, what to do next; the command line prints it as it is.
"""

from __future__ import annotations

import logging
from typing import ClassVar


class AutorecomputeError(Exception):
    """Base of all errors that a user can meet."""

    exit_code: ClassVar[int] = 1
    has_answer = False
    """True if the command has printed its answer all the same."""


class UsageError(AutorecomputeError):
    """The command, its arguments or its study do not make sense together."""

    exit_code = 2


class WrongBatchError(UsageError):
    """The model received another batch than it was to receive."""


class OwnCheckpointingError(UsageError):
    """The script's own checkpointing cannot be switched off, as ``--replace-checkpointing`` asks."""


class SetupError(AutorecomputeError):
    """The machine or the installation lacks something."""

    exit_code = 3


class NothingFitsError(AutorecomputeError):
    """No config holds the memory limit."""

    exit_code = 4


class TooLittleTimeError(NothingFitsError):
    """The time was over before there was any answer, be it that nothing fits."""


class LeftToOthers(AutorecomputeError):  # noqa: N818  (that others go on is no error)
    """The time of one worker is over, and others go on with the study that they share."""

    exit_code = 0


class ScriptError(AutorecomputeError):
    """The user's script fails by itself, whatever is recomputed."""

    exit_code = 5


class TooLargeError(ScriptError):
    """It runs out of memory before anything can be recomputed."""


class ReaderLeft(AutorecomputeError):  # noqa: N818  (that somebody has seen enough is no error)
    """Standard output was closed early (for example by ``head``): exit code as for SIGPIPE, and no message."""

    exit_code = 141


class InterruptedByUser(AutorecomputeError):  # noqa: N818  (an interruption is no error)
    """The user stopped the command; the study is kept."""

    exit_code = 130


def chain_of(error: BaseException) -> list[BaseException]:
    """Return the error, and all that it was raised from or in the handling of, the nearest first and each once."""
    links: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    for link in waiting:
        if link is not None and link not in links:
            links.append(link)
            waiting += [link.__cause__, link.__context__]
    return links


def first_line(error: BaseException) -> str:
    """Return the first line of its text, without a full stop; its type where there is none."""
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def last_line(error: BaseException) -> str:
    """Return the last line of its text that says anything; its type where there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def log(level: int, text: str) -> None:
    """Tell the log. Where a program has set none up, Python prints the words alone, so they say who speaks."""
    own = logging.getLogger("autorecompute")
    own.log(level, "%s%s", "" if own.hasHandlers() else f"{own.name}: ", text)
