"""``autorecompute show``: the studies there are, or the table of one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.units import printable

if TYPE_CHECKING:
    import argparse

    from autorecompute.studies import StudyFolder
    from autorecompute.studies.problem import Tuned
    from autorecompute.studies.transfer import StoredStudy


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = subparsers.add_parser(
        "show",
        help="the table of a study, or the studies there are",
        description="Prints every trial of a study and its answer; without STUDY, the studies in ./studies.",
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help="name of the study")
    add_show_arguments(parser)
    parser.set_defaults(run=run)


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add how a study is to be shown."""
    parser.add_argument("--why", action="store_true", help="tell which part differs from the nearest stored study")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print a study, or their list.

    Raises:
        UsageError: there is no such study, or ``--why`` comes without one.
    """
    from autorecompute.studies import StudyFolder
    from autorecompute.studies.problem import Tuned
    from autorecompute.studies.transfer import find_most_alike

    if args.study is None:
        if args.why:
            raise UsageError("--why is about one study. Name it: autorecompute show STUDY --why")
        return run_list(args)
    folder = StudyFolder(args.study)
    tuned = Tuned.of(folder.head())
    nearest = None
    if args.why:
        nearest = find_most_alike(tuned, folder, lambda text: print(printable(text), file=sys.stderr))
    if args.json:
        _print_json(folder, tuned, nearest, tells_nearest=args.why)
    else:
        _print(folder, tuned)
        if args.why:
            from autorecompute.reports.listing import print_nearest

            print()
            print_nearest(tuned, nearest)
    return 0


def _print_json(folder: StudyFolder, tuned: Tuned, nearest: StoredStudy | None, *, tells_nearest: bool) -> None:
    from autorecompute import codec
    from autorecompute.emit.handing import hand_out_if_any
    from autorecompute.reports.answer_json import Answer, MeasuredTrial, NearestStudy, ShownStudy
    from autorecompute.studies.records import trials_of, trials_of_answer

    trials, result = trials_of(folder), folder.result()
    answer, told = None, None
    if result is not None:
        answer = Answer.of(result, trials_of_answer(folder, result), hand_out_if_any(folder, result))
    if nearest is not None:
        told = NearestStudy(
            study=nearest.name,
            is_shipped=nearest.is_shipped,
            has_same_plans=nearest.has_same_plans,
            differences=tuple(tuned.compare(nearest.tuned)),
        )
    shown = ShownStudy(
        provenance=folder.provenance(),
        identity=tuned.parts,
        result=answer,
        trials=tuple(map(MeasuredTrial.of, trials)),
        nearest=told if tells_nearest else codec.ABSENT,
    )
    print(codec.dumps(shown))


def _print(folder: StudyFolder, tuned: Tuned) -> None:
    from autorecompute.emit.handing import hand_out_if_any
    from autorecompute.reports.answer import NOT_OUR_COMMAND
    from autorecompute.reports.listing import print_identity
    from autorecompute.reports.screen import print_result, print_trials
    from autorecompute.studies.records import describe_missing, place_of, trials_of, trials_of_answer

    # All is read before anything is printed: what cannot be read ends in a sentence alone.
    trials, result, place = trials_of(folder), folder.result(), place_of(folder)
    own, is_imported = trials_of_answer(folder, result) if result else [], folder.is_imported
    rendered = hand_out_if_any(folder, result)
    print_identity(tuned.problem.digest, tuned.parts)
    if place:
        print(f"shared in {place}")
    print()
    if trials:
        print_trials(trials)
        print()
    if result:
        print_result(result, own, folder.path, rendered)
        if is_imported and result.best is not None:
            print(NOT_OUR_COMMAND)
    else:
        again = "run its tune command again" if place is None else "run its tune command again, with its --storage,"
        print(f"{describe_missing(folder)} No answer yet: {again} to go on.".strip())


def run_list(args: argparse.Namespace) -> int:
    """Print the studies there are."""
    from autorecompute import codec
    from autorecompute.reports.listing import StudyLine, StudyList, print_studies
    from autorecompute.studies import list_studies

    studies = tuple(map(StudyLine.of, list_studies()))
    if args.json:
        print(codec.dumps(StudyList(studies=studies)))
    else:
        print_studies(studies)
    return 0
