"""``autorecompute emit``: a study's config as variables to train with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from autorecompute.emit import RENDERERS
from autorecompute.errors import UsageError
from autorecompute.files import write_whole_bytes

EXAMPLES = """examples:
  eval "$(autorecompute emit bert)"                              for this shell
  autorecompute emit bert --format dotenv -o bert.env            for docker run --env-file bert.env
  autorecompute emit bert --format json                          for a program
"""


def register(subparsers: Any) -> None:
    """Adds the verb to the command line."""
    parser = subparsers.add_parser(
        "emit",
        help="print the variables to train with",
        description="Prints the variables that make the unmodified script train with the study's config.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", help="name of the study")
    parser.add_argument("--format", choices=list(RENDERERS), default="shell", help="default: %(default)s")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write this file instead of printing")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints or writes the study's variables.

    Raises:
        UsageError: there is no such study, or FILE cannot be written.
        NothingFitsError: the study has no config to train with.
    """
    from autorecompute.emit.handing import hand_out
    from autorecompute.studies import StudyFolder, load_result

    result = load_result(args.study)
    text = RENDERERS[args.format](result, hand_out(StudyFolder(args.study), result))
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_file(args.output, text, force=args.force)
    return 0


def write_file(file: Path, text: str, *, force: bool) -> None:
    """Writes the file whole or not at all.

    Raises:
        UsageError: it exists and ``force`` does not hold, it is no regular file, or its folder takes no files.
    """
    write_file_bytes(file, text.encode("utf-8", errors="surrogateescape"), force=force)


def write_file_bytes(file: Path, content: bytes, *, force: bool) -> None:
    """The same for what is no text.

    Raises:
        UsageError: it exists and ``force`` does not hold, it is no regular file, or its folder takes no files.
    """
    if file.exists() and not file.is_file():
        raise UsageError(f"'{file}' is no regular file. Give the path of a file after -o.")
    if file.exists() and not force:
        raise UsageError(f"'{file}' exists already. Add --force to replace it.")
    try:
        write_whole_bytes(file.resolve(), content)
    except OSError as error:
        raise UsageError(f"'{file}' cannot be written: {error.strerror}. Give a file in a folder of yours.") from error
