"""Report of a check, as a table and as one JSON object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rich.text import Text

from autorecompute.codec import INLINED
from autorecompute.reports.console import make_console, make_table
from autorecompute.studies.checked import CheckReport, CheckVerdict

NOTE_WIDTH = 80
"""A file has no edge at which a long note would wrap."""
STYLES = {CheckVerdict.OK: "green", CheckVerdict.FAILS: "bold red", CheckVerdict.DIFFERS: "yellow"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Validity of a stored config on this machine."""

    valid: Annotated[bool, "True if the config still holds here: no line fails, and its gradients were compared."]
    report: Annotated[CheckReport, INLINED]


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
    found = "valid here" if report.is_valid else "not valid here" if report.failures else "not confirmed here"
    console.print(Text(f"{report.config}: {found}"))
