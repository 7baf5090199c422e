"""``autorecompute show``: the studies there are, or the table of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from autorecompute.studies import StudyFolder


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb."""
    parser = subparsers.add_parser(
        "show",
        help="the table of a study, or the studies there are",
        description="Prints every trial of a study and its answer; without STUDY, the studies in ./studies.",
    )
    parser.add_argument("study", nargs="?", metavar="STUDY", help="name of the study")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints a study, or their list."""
    from autorecompute.studies import StudyFolder, list_studies

    if args.study is not None:
        _show(StudyFolder(args.study), as_json=args.json)
    else:
        _list(list_studies(), as_json=args.json)
    return 0


def _show(folder: StudyFolder, *, as_json: bool) -> None:
    from autorecompute.reports.as_json import dumps, result_as_plain, trials_as_plain
    from autorecompute.reports.screen import print_result, print_trials
    from autorecompute.studies.storage import read_trials

    provenance = folder.provenance()
    trials, result = read_trials(folder.database, folder.name_in_database), folder.result()
    if as_json:
        answer = result_as_plain(result) if result else None
        print(dumps({"provenance": provenance, "result": answer, "trials": trials_as_plain(trials)}))
        return
    if trials:
        print_trials(trials)
        print()
    if result:
        print_result(result, trials, folder.path)
    else:
        print("No answer yet: run its tune command again to go on.")


def _list(folders: list[StudyFolder], *, as_json: bool) -> None:
    from autorecompute.reports.as_json import dumps
    from autorecompute.reports.listing import print_studies, study_as_plain

    plain = [study_as_plain(folder) for folder in folders]
    if as_json:
        print(dumps({"studies": plain}))
    else:
        print_studies(plain)
