"""Output of every verb, and how a failure is reported."""

from __future__ import annotations

import codecs
import io
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.errors import ReaderLeft, SetupError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a command has no answer."""

    error: Annotated[str, "What happened, and what to do next, as on standard error."]
    exit_code: Annotated[int, "The exit code of the command."]


STDOUT, STDERR = 1, 2
UNENCODABLE = "autorecompute.unencodable"


def guard_output() -> None:
    """End the command by the contract where standard output cannot be written; standard error may fail.

    A stream that something else has taken the place of, such as a test's, is left alone.
    """
    _guard_messages()
    stream, is_own = sys.stdout, sys.stdout is sys.__stdout__
    if stream is None:
        # Left free, its number would be that of the next file, and whoever writes to it would write there.
        _occupy(STDOUT, os.O_RDONLY)
        sys.stdout = _guarded("utf-8")
    elif is_own and stream.fileno() == STDOUT:
        stream.flush()
        sys.stdout = _guarded(stream.encoding)


def _guard_messages() -> None:
    stream, is_own = sys.stderr, sys.stderr is sys.__stderr__
    if stream is None:
        _occupy(STDERR, os.O_WRONLY)
        sys.stderr = open(STDERR, "w", closefd=False)  # noqa: SIM115  (open as long as the process)
    elif is_own and stream.fileno() == STDERR:
        stream.flush()
        told = io.BufferedWriter(_Unheard(STDERR, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(told, stream.encoding, stream.errors, line_buffering=True)


def _occupy(number: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _guarded(encoding: str) -> io.TextIOWrapper:
    raw = _Guarded(STDOUT, "wb", closefd=False)
    codecs.register_error(UNENCODABLE, _write_out)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, UNENCODABLE, line_buffering=raw.isatty())


def _write_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return a path that is no UTF-8 as the bytes that it is; what a terminal has no sign for as Python writes it."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


class _Unheard(io.FileIO):
    """File below the buffer of messages: with nobody to read them the command goes on to its answer."""

    def write(self, content: ReadableBuffer, /) -> int:
        """Write, or drop what cannot be written."""
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


class _Guarded(io.FileIO):
    """File below the buffer, where failures are met."""

    def write(self, content: ReadableBuffer, /) -> int:
        """Write, or lead all that follows to nowhere: Python writes what it holds back once more when it ends.

        Raises:
            ReaderLeft: whoever read has seen enough.
            SetupError: the disk is full, or the stream is closed.
        """
        try:
            return super().write(content)
        except BrokenPipeError as error:
            _occupy(self.fileno(), os.O_WRONLY)
            raise ReaderLeft from error
        except OSError as error:
            _occupy(self.fileno(), os.O_WRONLY)
            raise SetupError(
                f"Standard output cannot be written: {error.strerror}. What was measured is kept: make room, or write "
                "elsewhere, and run the command again."
            ) from error
