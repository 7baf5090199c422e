"""``autorecompute show`` and ``studies``: what there is, and studies that come, go and travel."""

from __future__ import annotations

import gzip
import sys
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends.registry import controllers
from autorecompute.emit import hand_out_if_any
from autorecompute.errors import UsageError
from autorecompute.files import write_named
from autorecompute.reports.answer import NOT_OUR_COMMAND, print_result, print_trials
from autorecompute.reports.documents import Answer, NearestStudy, ShownStudy
from autorecompute.reports.tables import StudyLine, StudyList, print_identity, print_nearest, print_studies
from autorecompute.studies import StudyFolder, list_studies
from autorecompute.studies.archive import GZIP_SUFFIX, dump, read_archive
from autorecompute.studies.folder import is_name
from autorecompute.studies.importing import find_removable, import_records, remove, require_removable, size_of
from autorecompute.studies.records import describe_missing, place_of, read_records, trials_of, trials_of_answer
from autorecompute.studies.transfer import find_most_alike
from autorecompute.trials.private import forget_compiled_code
from autorecompute.units import format_bytes, printable

if TYPE_CHECKING:
    import argparse

    from autorecompute.studies.problem import Head
    from autorecompute.studies.transfer import StoredStudy


def run_show(args: argparse.Namespace) -> None:
    """Print a study, or their list."""
    if args.study is None:
        if args.why:
            raise UsageError("--why is about one study. Name it: autorecompute show STUDY --why")
        run_list(args)
        return
    folder = StudyFolder.at(args.study)
    head = folder.head()
    nearest = None
    if args.why:
        nearest = find_most_alike(head, folder, lambda text: print(printable(text), file=sys.stderr))
    if args.json:
        _print_json(folder, head, nearest, tells_nearest=args.why)
    else:
        _print(folder, head)
        if args.why:
            print()
            print_nearest(head, nearest)


def _print_json(folder: StudyFolder, head: Head, nearest: StoredStudy | None, *, tells_nearest: bool) -> None:
    trials, result = trials_of(folder), folder.result()
    answer, told = None, None
    if result is not None:
        answer = Answer.of(result, trials_of_answer(folder, result), hand_out_if_any(folder, result))
    if nearest is not None:
        told = NearestStudy(
            study=nearest.name,
            is_shipped=nearest.is_shipped,
            has_same_plans=head.problem.has_same_plans(nearest.head.problem),
            differences=tuple(head.compare(nearest.head)),
        )
    shown = ShownStudy(
        provenance=folder.provenance(),
        identity=head.parts,
        result=answer,
        trials=tuple(trials),
        nearest=told if tells_nearest else codec.ABSENT,
    )
    print(codec.dumps(shown))


def _print(folder: StudyFolder, head: Head) -> None:
    # All is read before anything is printed: what cannot be read ends in a sentence alone.
    trials, result, place = trials_of(folder), folder.result(), place_of(folder)
    own, is_imported = trials_of_answer(folder, result) if result else [], folder.is_imported
    rendered = hand_out_if_any(folder, result)
    print_identity(head.problem.digest, head.parts)
    if place:
        print(f"shared in {place}")
    print()
    if trials:
        print_trials(trials)
        print()
    if result:
        print_result(result, own, folder, rendered)
        if is_imported and result.best is not None:
            print(NOT_OUR_COMMAND)
    else:
        again = "run its tune command again" if place is None else "run its tune command again, with its --storage,"
        print(f"{describe_missing(folder)} No answer yet: {again} to go on.".strip())


def run_list(args: argparse.Namespace) -> None:
    """Print the studies there are."""
    studies = tuple(map(StudyLine.of, list_studies()))
    if args.json:
        print(codec.dumps(StudyList(studies=studies)))
    else:
        print_studies(studies)


def run_export(args: argparse.Namespace) -> None:
    """Write a study's archive."""
    folder = StudyFolder.at(args.study)
    if missing := describe_missing(folder):
        raise UsageError(f"{missing} Wait for that, or run its tune command again with its --storage.")
    archive = dump(read_records(folder))
    if args.output is None:
        sys.stdout.write(archive.decode())
    else:
        packed = gzip.compress(archive, mtime=0) if args.output.name.endswith(GZIP_SUFFIX) else archive
        write_named(args.output, packed, force=args.force)


def run_import(args: argparse.Namespace) -> None:
    """Make a study of an archive."""
    records = read_archive(args.file)
    name = records.head.study if args.study is None else args.study
    if args.study is None and not is_name(name):
        raise UsageError(f"The archive's study is called '{printable(name, '')}', which none can be. Add --study NAME.")
    knobs = {backend.NAME: frozenset(knob.name for knob in backend.KNOBS) for backend in controllers()}
    folder = import_records(records, name, knobs, force=args.force)
    print(f"study {folder.path}", file=sys.stderr)


def run_delete(args: argparse.Namespace) -> None:
    """Remove studies, after asking on a terminal."""
    folders = list({folder.path: folder for folder in map(StudyFolder.at, args.studies)}.values())
    for folder in folders:
        if not folder.exists():  # one that cannot be read may go, too
            there = folder.path.parent
            raise UsageError(f"There is no study '{folder.name}' in {there}. List them: autorecompute show")
        require_removable(folder)
    if not args.force and not _agrees(folders):
        print("nothing was removed", file=sys.stderr)
        return
    for folder in folders:
        require_removable(folder)  # while the user was asked, a tuning may have begun
        print(f"removed {folder.path}, {format_bytes(remove(folder.path))}", file=sys.stderr)
        forget_compiled_code(folder.path)


def _agrees(folders: list[StudyFolder]) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("Nobody is there to be asked whether to remove it. Add --force.")
    for folder in folders:
        print(f"{folder.path}, {format_bytes(size_of(folder.path))}", file=sys.stderr)
    print("remove? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def run_prune(args: argparse.Namespace) -> None:
    """Remove what reuse does not need, and print it."""
    found = list(find_removable())
    for path, why in found:
        print(f"{path}  {format_bytes(size_of(path))}  {why}")
    total = sum(size_of(path) if args.dry_run else remove(path) for path, _ in found)
    print(f"{'would free' if args.dry_run else 'freed'} {format_bytes(total)}", file=sys.stderr)
