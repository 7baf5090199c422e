"""The list of studies."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from rich.table import Table
from rich.text import Text

from autorecompute.errors import AutorecomputeError
from autorecompute.figures import Verdict
from autorecompute.reports.console import make_console
from autorecompute.studies.records import require_database, shared_from

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyLine:
    """A study in a line."""

    study: Annotated[str, "Its name."]
    problem: Annotated[str | None, "Digest of its problem; ``None`` where it cannot be read."]
    verdict: Annotated[Verdict | None, "What was found out; ``None`` without an answer."]
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
        return cls(
            study=folder.name,
            problem=head.problem.digest,
            verdict=None if result is None else result.verdict,
            command=head.command,
            note=_describe(result) + shared,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyList:
    """The studies there are."""

    studies: Annotated[tuple[StudyLine, ...], "The studies, by name."]


def _describe(result: Result | None) -> str:
    if result is None or result.verdict is None:
        return "no answer yet"
    if result.best is None:
        return ""
    found = f"{result.best.description} at batch {result.best.batch}"
    return f"{found}, so far" if result.search_end.is_early else found


def print_studies(studies: Sequence[StudyLine]) -> None:
    """Print the studies as a table, or where they would be."""
    if not studies:
        print("No study in ./studies. Begin one: autorecompute tune train.py --target-batch N")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("study", "verdict", "best", "command"):
        table.add_column(column, no_wrap=column in {"study", "verdict"})
    for study in studies:
        note = study.note if _is_readable(study) else "cannot be read: see below"
        cells = (study.study, study.verdict or "-", note, shlex.join(study.command or ["-"]))
        table.add_row(*map(Text, cells))
    console = make_console()
    console.print(table)
    for study in studies:
        if not _is_readable(study):
            # A sentence that would make the column, and with it every row, as wide as itself.
            console.print(Text(f"\n{study.study}: {study.note}"))


def _is_readable(study: StudyLine) -> bool:
    return study.command is not None
