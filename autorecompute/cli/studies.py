"""``autorecompute studies``: what there is, and studies that come, go and travel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.cli.show import add_show_arguments, run_list
from autorecompute.cli.show import run as run_show
from autorecompute.errors import UsageError
from autorecompute.units import format_bytes, printable

if TYPE_CHECKING:
    import argparse

    from autorecompute.studies import StudyFolder


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb with its own verbs."""
    parser = subparsers.add_parser(
        "studies",
        help="list, move and remove studies",
        description="Lists, exports, imports and removes the studies in ./studies.",
        epilog="example: autorecompute studies export bert -o bert.jsonl.gz",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the studies there are")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    listing.set_defaults(run=run_list)
    show = actions.add_parser("show", help="every trial of a study, and its answer")
    show.add_argument("study", metavar="STUDY", help="name of the study")
    add_show_arguments(show)
    show.set_defaults(run=run_show)
    _add_export(actions)
    _add_import(actions)
    _add_removal(actions)


def _add_export(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    export = actions.add_parser(
        "export",
        help="a study as one portable file",
        description="Writes all that a study measured as JSON lines: no logs, no absolute paths, no pickle. Its "
        "command is in it, with the arguments.",
    )
    export.add_argument("study", metavar="STUDY", help="name of the study")
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="compressed where it ends in .gz")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    export.set_defaults(run=run_export)


def _add_import(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    importing = actions.add_parser("import", help="a study from such a file")
    importing.add_argument("file", type=Path, metavar="FILE", help="what 'studies export' wrote; - reads it from stdin")
    importing.add_argument("--study", metavar="NAME", help="what to call it (default: as it was called)")
    importing.add_argument("--force", action="store_true", help="replace a study of this name")
    importing.set_defaults(run=run_import)


def _add_removal(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    delete = actions.add_parser("delete", help="remove studies")
    delete.add_argument("studies", nargs="+", metavar="STUDY", help="names of studies")
    delete.add_argument("--force", action="store_true", help="ask nothing")
    delete.set_defaults(run=run_delete)
    prune = actions.add_parser(
        "prune",
        help="remove what reuse does not need",
        description="Removes the output of finished studies' processes, studies that measured nothing, and what "
        "commands that were ended have left.",
    )
    prune.add_argument("--dry-run", action="store_true", help="only print what would go, and its size")
    prune.set_defaults(run=run_prune)


def run_export(args: argparse.Namespace) -> int:
    """Write a study's archive.

    Raises:
        UsageError: there is no such study, its trials are elsewhere, or FILE exists or cannot be written.
    """
    from autorecompute.files import write_named
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.archive import GZIP_SUFFIX, compress, dump
    from autorecompute.studies.records import describe_missing, read_records

    folder = StudyFolder(args.study)
    if missing := describe_missing(folder):
        raise UsageError(f"{missing} Wait for that, or run its tune command again with its --storage.")
    archive = dump(read_records(folder))
    if args.output is None:
        sys.stdout.write(archive.decode())
    else:
        is_compressed = args.output.name.endswith(GZIP_SUFFIX)
        write_named(args.output, compress(archive) if is_compressed else archive, force=args.force)
    return 0


def run_import(args: argparse.Namespace) -> int:
    """Make a study of an archive.

    Raises:
        UsageError: FILE is no archive, or the name is taken.
    """
    from autorecompute.backends.registry import controllers
    from autorecompute.studies.archive import read_archive
    from autorecompute.studies.folder import is_name
    from autorecompute.studies.importing import import_records

    records = read_archive(args.file)
    name = records.head.study if args.study is None else args.study
    if args.study is None and not is_name(name):
        raise UsageError(f"The archive's study is called '{printable(name, '')}', which none can be. Add --study NAME.")
    knobs = {backend.NAME: frozenset(knob.name for knob in backend.KNOBS) for backend in controllers()}
    folder = import_records(records, name, knobs, force=args.force)
    print(f"study {folder.path}", file=sys.stderr)
    return 0


def run_delete(args: argparse.Namespace) -> int:
    """Remove studies, after asking on a terminal.

    Raises:
        UsageError: one of them does not exist, is in use, or holds somebody else's files; then none is removed.
    """
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.importing import delete, require_removable
    from autorecompute.trials.private import forget_compiled_code

    folders = [StudyFolder(name) for name in dict.fromkeys(args.studies)]
    for folder in folders:
        if not folder.exists():  # one that cannot be read may go, too
            there = folder.path.parent
            raise UsageError(f"There is no study '{folder.name}' in {there}. List them: autorecompute show")
        require_removable(folder)
    if not args.force and not _agrees(folders):
        print("nothing was removed", file=sys.stderr)
        return 0
    for folder in folders:
        print(f"removed {folder.path}, {format_bytes(delete(folder))}", file=sys.stderr)
        forget_compiled_code(folder.path)
    return 0


def _agrees(folders: list[StudyFolder]) -> bool:
    from autorecompute.studies.importing import size_of

    if not sys.stdin.isatty():
        raise UsageError("Nobody is there to be asked whether to remove it. Add --force.")
    for folder in folders:
        print(f"{folder.path}, {format_bytes(size_of(folder.path))}", file=sys.stderr)
    print("remove? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def run_prune(args: argparse.Namespace) -> int:
    """Remove what reuse does not need, and print it."""
    from autorecompute.studies.importing import find_removable, remove, size_of
    from autorecompute.units import format_bytes

    found = list(find_removable())
    for path, why in found:
        print(f"{path}  {format_bytes(size_of(path))}  {why}")
    total = sum(size_of(path) if args.dry_run else remove(path) for path, _ in found)
    print(f"{'would free' if args.dry_run else 'freed'} {format_bytes(total)}", file=sys.stderr)
    return 0
