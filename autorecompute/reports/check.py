"""What a check found, as a table and as one JSON object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from autorecompute import codec
from autorecompute.reports.console import make_console
from autorecompute.studies.checked import CheckVerdict

if TYPE_CHECKING:
    from autorecompute.studies.checked import CheckReport

NOTE_WIDTH = 80
"""A file has no edge at which a long note would wrap."""
STYLES = {CheckVerdict.OK: "green", CheckVerdict.FAILS: "bold red", CheckVerdict.DIFFERS: "yellow"}


def print_check(report: CheckReport) -> None:
    """Prints a line for each thing that was checked, and what they come to."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("", "stored", "here", "verdict", ""):
        table.add_column(column, overflow="fold")
    table.columns[-1].max_width = NOTE_WIDTH
    for line in report.lines:
        word = str(line.verdict).replace("_", " ")
        verdict = Text(word, style=STYLES.get(line.verdict, ""))
        table.add_row(line.what, Text(line.stored), Text(line.here), verdict, Text(line.note))
    console = make_console()
    console.print(table)
    console.print()
    console.print(Text(f"{report.config}: {'valid here' if report.is_valid else 'not valid here'}"))


def check_as_plain(report: CheckReport) -> dict[str, Any]:
    """The report as JSON has it."""
    return {"valid": report.is_valid, **codec.to_plain(report)}
