"""Tables of studies: their list, what one differs in from the nearest other one, and how a check of it went."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from autorecompute.errors import AutorecomputeError
from autorecompute.figures import Verdict
from autorecompute.reports.console import make_console, make_table
from autorecompute.studies.checked import CheckVerdict
from autorecompute.studies.records import require_database, shared_from

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.studies import StudyFolder
    from autorecompute.studies.checked import CheckReport
    from autorecompute.studies.problem import Head
    from autorecompute.studies.transfer import StoredStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """A study in a line."""

    study: Annotated[str, "Its name."]
    problem: Annotated[str | None, "Digest of its problem; ``None`` where it cannot be read."]
    verdict: Annotated[Verdict | None, "Verdict on recompute; ``None`` without an answer."]
    command: Annotated[tuple[str, ...] | None, "The command that was tuned; ``None`` where it cannot be read."]
    note: Annotated[str, "The best config, that there is no answer yet, or why it cannot be read."]

    @classmethod
    def of(cls, folder: StudyFolder) -> StudyLine:
        """Return a study in a line; one that cannot be read says why instead of hiding the others."""
        try:
            require_database(folder)
            head, result = folder.head(), folder.result()
            shared = "; shared" if shared_from(folder) is not None else ""
        except AutorecomputeError as error:
            return cls(study=folder.name, problem=None, verdict=None, command=None, note=str(error))
        note = "no answer yet" if result is None or result.verdict is None else ""
        if result is not None and result.verdict is not None and (best := result.best) is not None:
            note = f"{best.description} at {best.size}{', so far' if result.search_end.is_early else ''}"
        verdict = None if result is None else result.verdict
        digest, command = head.problem.digest, head.command
        return cls(study=folder.name, problem=digest, verdict=verdict, command=command, note=note + shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyList:
    """The studies there are."""

    studies: Annotated[tuple[StudyLine, ...], "The studies, by name."]


def print_studies(studies: Sequence[StudyLine]) -> None:
    """Print the studies as a table, or where they would be."""
    if not studies:
        print("No study in ./studies. Begin one: autorecompute tune train.py --target-batch N")
        return
    table, unreadable = make_table("study", "verdict", "best", "command", whole={"study", "verdict"}), []
    for study in studies:
        note = study.note
        if study.command is None:
            # A sentence that would make the column, and with it every row, as wide as itself.
            note = "cannot be read: see below"
            unreadable.append(f"\n{study.study}: {study.note}")
        table.add_row(*map(Text, (study.study, study.verdict or "-", note, shlex.join(study.command or ["-"]))))
    console = make_console()
    console.print(table)
    for sentence in unreadable:
        console.print(Text(sentence))


def print_identity(digest: str, parts: Mapping[str, str]) -> None:
    """Print what makes two tunings the same."""
    table = make_table("part", "value", whole={"part"})
    table.show_header = False
    for name, value in parts.items():
        table.add_row(Text(name, style="dim"), Text(value))
    console = make_console()
    console.print(Text(f"problem {digest}"))
    console.print(table)


def print_nearest(head: Head, nearest: StoredStudy | None) -> None:
    """Print which part differs from the nearest stored study, and what follows from that."""
    console = make_console()
    if nearest is None:
        console.print(Text("There is no other study to start from."))
        return
    shipped = ", which comes with autorecompute" if nearest.is_shipped else ""
    console.print(Text(f"nearest: study {nearest.name}{shipped}"))
    differences = head.compare(nearest.head)
    if differences:
        table = make_table("", "here", "there", whole={""})
        for difference in differences:
            table.add_row(Text(difference.part, style="dim"), Text(difference.here), Text(difference.there))
        console.print(table)
    consequence = "it is about the same problem: its answer is taken over, unless --fresh is given"
    if not head.problem.has_same_plans(nearest.head.problem):
        consequence = "its plans are others, or mean something else: it tells nothing of this problem"
    elif differences or nearest.is_shipped:
        consequence = "its plans are the same: a tuning starts from what it knows, unless --fresh is given"
    console.print(Text(consequence))


NOTE_WIDTH = 80  # a file has no edge at which a long note would wrap
STYLES = {CheckVerdict.OK: "green", CheckVerdict.FAILS: "bold red", CheckVerdict.DIFFERS: "yellow"}


def print_check(report: CheckReport) -> None:
    """Print a line for each thing that was checked, and what they come to."""
    table = make_table("", "stored", "here", "verdict", "")
    table.columns[-1].max_width = NOTE_WIDTH
    for line in report.lines:
        word = str(line.verdict).replace("_", " ")
        verdict = Text(word, style=STYLES.get(line.verdict, ""))
        table.add_row(line.what, Text(line.stored), Text(line.here), verdict, Text(line.note))
    console = make_console()
    console.print(table)
    console.print()
    found = "valid here" if report.valid else "not valid here" if report.failures else "not confirmed here"
    console.print(Text(f"{report.config}: {found}"))
