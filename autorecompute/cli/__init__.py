"""The command line: its verbs are imported when they are called, for ``--help`` must stay fast."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import io
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from autorecompute.cli.advice import require_script
from autorecompute.cli.parsers import STORAGE_VARIABLE, make_parser, prepared
from autorecompute.errors import AutorecomputeError, InterruptedByUser, ReaderLeft, SetupError, UsageError
from autorecompute.units import printable
from autorecompute.waiting import clock

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main(argv: list[str] | None = None) -> int:
    """Run one command and give its exit code: see ``autorecompute.errors`` for what each means."""
    guard_output()
    arguments = sys.argv[1:] if argv is None else argv
    # After -- comes the user's own command, or the script's arguments.
    split = arguments.index("--") if "--" in arguments else len(arguments)
    try:
        return _run(arguments[:split], arguments[split + 1 :])
    except ReaderLeft as end:
        return end.exit_code
    except AutorecomputeError as error:
        return _fail(error, as_json="--json" in arguments[:split])
    except KeyboardInterrupt:
        return _fail(InterruptedByUser("interrupted"), as_json="--json" in arguments[:split])


def _fail(error: AutorecomputeError, *, as_json: bool) -> int:
    """Say why there is no answer, with ``--json`` on standard output, too."""
    message = printable(str(error))
    print(f"autorecompute: {message}", file=sys.stderr)
    if as_json and not error.has_answer:
        from autorecompute import codec

        # Where standard output cannot be written, that is what the message is about.
        with contextlib.suppress(ReaderLeft, SetupError):
            print(codec.dumps(Failure(error=message, exit_code=error.exit_code)), flush=True)
    return error.exit_code


def _run(arguments: list[str], rest: list[str]) -> int:
    try:
        args = make_parser().parse_args(prepared(arguments))
    finally:
        sys.stdout.flush()  # --help ends right there
    try:
        Path.cwd()
    except OSError as error:
        raise SetupError(f"The working folder cannot be used: {error.strerror}. Go to another one with cd.") from error
    args.rest, args.began_seconds = rest, clock()  # what is imported for the verb counts
    if rest and not args.starts:
        raise UsageError(
            f"'autorecompute {arguments[0]}' starts no script, so nothing can follow --. Leave out the --."
        )
    require_script(args, arguments[0])
    # It may hold a password, and is nothing to the scripts that are started from here.
    os.environ.pop(STORAGE_VARIABLE, None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    module, _, function = args.run.partition(".")
    code = getattr(importlib.import_module(f"autorecompute.cli.{module}"), function)(args)
    sys.stdout.flush()
    return int(code or 0)


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
    codecs.register_error(UNENCODABLE, _write_out)
    # Left free, its number would be that of the next file, and whoever writes to it would write there.
    for name, number, flags in (("stderr", STDERR, os.O_WRONLY), ("stdout", STDOUT, os.O_RDONLY)):
        stream, encoding = getattr(sys, name), "utf-8"
        if stream is None:
            _occupy(number, flags)
        elif stream is getattr(sys, f"__{name}__") and stream.fileno() == number:
            stream.flush()
            encoding = stream.encoding
        else:
            continue
        raw = _Guarded(number, "wb", closefd=False)
        errors = UNENCODABLE if number == STDOUT else "backslashreplace"
        is_by_line = number == STDERR or raw.isatty()
        setattr(sys, name, io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=is_by_line))


def _occupy(number: int, flags: int) -> None:
    null = os.open(os.devnull, flags)
    if null != number:
        os.dup2(null, number)
        os.close(null)


def _write_out(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return a path that is no UTF-8 as the bytes that it is; what a terminal has no sign for as Python writes it."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.backslashreplace_errors(error)


class _Guarded(io.FileIO):
    """File below the buffer of standard output or standard error, where failures are met."""

    def write(self, content: ReadableBuffer, /) -> int:
        """Write, or lead all that follows to nowhere: Python writes what it holds back once more when it ends.

        A message that nobody is there to read is dropped, and the command goes on to its answer.
        """
        try:
            return super().write(content)
        except OSError as error:
            if self.fileno() == STDERR:
                return memoryview(content).nbytes
            _occupy(self.fileno(), os.O_WRONLY)
            if isinstance(error, BrokenPipeError):
                raise ReaderLeft from error
            raise SetupError(
                f"Standard output cannot be written: {error.strerror}. What was measured is kept: make room, or write "
                "elsewhere, and run the command again."
            ) from error
