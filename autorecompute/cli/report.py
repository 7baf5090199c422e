"""``autorecompute report``: a study as a page to look at and to pass on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "report",
        help="a study as one HTML page",
        description="Writes one HTML page that needs nothing from elsewhere: what to use, what it buys, why, how sure.",
        epilog="example: autorecompute report bert -o bert.html",
    )
    parser.add_argument("study", metavar="STUDY", help="name of the study")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="where to (default: report.html in the study's folder)"
    )
    parser.add_argument("--force", action="store_true", help="replace FILE if it exists")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page and print its path.

    Raises:
        UsageError: there is no such study, or FILE cannot be written.
        SetupError: jinja2 or matplotlib is not installed, or the study cannot be read, or its folder not be written.
    """
    from autorecompute.emit.handing import hand_out_if_any
    from autorecompute.files import require_place, write_named
    from autorecompute.reports.html import make_page
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.folder import PAGE, require_plain, write_atomically
    from autorecompute.units import printable

    folder = StudyFolder(args.study)
    folder.head()
    # The page names the files of what to train with.
    hand_out_if_any(folder, folder.result())
    page = args.output or folder.path / PAGE
    if args.output is None:
        # The page in the study's folder is made anew without being asked for it.
        require_plain(folder)
        write_atomically(page, make_page(folder, page))
    else:
        require_place(page, force=args.force)
        write_named(page, make_page(folder, page).encode("utf-8", errors="surrogateescape"), force=args.force)
    print(printable(str(page), ""))
    return 0
