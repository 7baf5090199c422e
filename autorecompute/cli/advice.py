"""Advice on commands that are written as for another verb, or for python."""

from __future__ import annotations

import difflib
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

REST = "rest"  # name of the script's arguments among those of a verb

SAME_MEANING = {"--batch": "--target-batch", "--target-batch": "--batch", "--limit": "--memory-limit"}
"""Options that one verb has under the name that is given to another."""

TYPING_ERROR = 0.8
"""Least ratio of difflib's from which on an option is taken for one that was mistyped."""


_MODULE = "-m"


def is_python(word: str) -> bool:
    """Tell whether a word is the interpreter, as people write it before a script."""
    return re.fullmatch(r"python[\d.]*", Path(word).name) is not None


def script_in(words: Sequence[str], between: str = "") -> str:
    """Return a script and its arguments as a verb takes them, of what follows ``python`` in a command.

    ``between`` stands for the options of the verb. Options of the interpreter are left out.
    """
    left = list(words)
    while left and left[0].startswith("-") and left[0] != _MODULE:
        left.pop(0)
    module = [left.pop(0)] if left[:1] == [_MODULE] else []
    script, *arguments = left or ["SCRIPT"]
    behind = ["--", shlex.join(arguments)] if arguments else []
    return " ".join([*module, shlex.quote(script), *([between] if between else []), *behind])


def advise(
    program: str, options: Iterable[str], found: argparse.Namespace, strangers: Sequence[str], args: Sequence[str]
) -> str:
    """Return what to write in place of arguments that the verb does not know; empty where nobody can tell."""
    given, more = strangers[0], shlex.join(strangers[1:])
    if given.startswith("--"):
        name, equals, value = given.partition("=")
        known = [one for one in options if one.startswith("--")]
        meant = SAME_MEANING.get(name) if SAME_MEANING.get(name) in known else None
        meant = meant or next(iter(difflib.get_close_matches(name, known, n=1, cutoff=TYPING_ERROR)), None)
        if meant is not None:
            whole = f"{meant}{equals}{value}{f' {more}' if more and not equals else ''}"
            return f". In '{program}' that is {whole}"
    if not getattr(found, "starts", False):
        return ""
    if REST not in found:
        command = f"{program} {shlex.quote(found.study)} -- {shlex.join(strangers)}"
        return f". The command comes after --: {command}"
    script = str(found.script)
    if is_python(script):
        return f". SCRIPT comes without {script}: {program} {script_in(strangers)}"
    hint = ". Arguments of the script come after --"
    if args[0] != script:
        return hint
    between = [] if len(args) == 1 + len(strangers) else ["..."]
    return f"{hint}: {' '.join([program, shlex.quote(script), *between, '--', shlex.join(strangers)])}"


def require_script(args: argparse.Namespace, verb: str) -> None:
    """Check that a verb which starts a script is given one, and not the command that starts it elsewhere.

    Raises:
        UsageError: there is none, or ``python`` stands in its place.
    """
    if "script" not in args:
        return
    command = f"autorecompute {verb}"
    rest: list[str] = args.rest
    if args.script is None and rest and is_python(rest[0]):
        raise UsageError(f"SCRIPT comes before --, without {rest[0]}: {command} {script_in(rest[1:], '...')}")
    if args.script is None:
        raise UsageError(f"No script is given. Name it first: {command} SCRIPT ... -- ARGUMENT ...")
    if is_python(str(args.script)) and not args.is_module:
        raise UsageError(f"SCRIPT comes without {args.script}: {command} {script_in(rest, '...')}")
