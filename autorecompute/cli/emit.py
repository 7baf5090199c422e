"""``autorecompute emit``: a study's config as variables to train with."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from autorecompute.emit.formats import RENDERERS
from autorecompute.files import write_named

EXAMPLES = """examples:
  eval "$(autorecompute emit bert)"                              for this shell
  autorecompute emit bert --format dotenv -o bert.env            for docker run --env-file bert.env
  autorecompute emit bert --format json                          for a program
  autorecompute emit plans.json --unmeasured blocks -o some.json what plans --fake --json showed, before any step
"""


def register(subparsers: Any) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "emit",
        help="print the variables to train with",
        description="Prints the variables to train with. Comments say what else the script needs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("study", metavar="STUDY", help="name of the study; with --unmeasured a file")
    parser.add_argument("--format", choices=list(RENDERERS), help="default: shell; json with --unmeasured")
    parser.add_argument(
        "--unmeasured",
        metavar="CONFIG",
        help="give out a config that was only planned, marked as unmeasured: a preset, best, or the hash of a config "
        "of the frontier, from the file that 'plans --fake --json' printed",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write this file instead of printing")
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the study's variables, or a config that nobody measured where that is asked for.

    Raises:
        UsageError: there is no such study or config, or FILE cannot be written.
        NothingFitsError: the study has no config to train with.
    """
    if args.unmeasured is None:
        from autorecompute.emit.handing import hand_out
        from autorecompute.studies import StudyFolder, load_result

        result = load_result(args.study)
        text = RENDERERS[args.format or "shell"](result, hand_out(StudyFolder(args.study), result))
    else:
        from autorecompute.emit.unmeasured import render_unmeasured

        text = render_unmeasured(Path(args.study), args.unmeasured, args.format or "json")
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_named(args.output, text.encode("utf-8", errors="surrogateescape"), force=args.force)
    return 0
