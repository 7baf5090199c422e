"""The parts of a problem's identity, and which of them another study has otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autorecompute.reports.console import make_console
from autorecompute.studies.identity import Difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.studies.transfer import Nearest
    from autorecompute.studies.tuned import Tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestStudy:
    """A stored study that another is like.

    Attributes:
        study: Its name.
        is_shipped: Whether it comes with autorecompute.
        has_same_plans: Whether a tuning starts from it: its plans are the same.
        differences: In what their problems differ; empty where in nothing.
    """

    study: str
    is_shipped: bool
    has_same_plans: bool
    differences: tuple[Difference, ...]

    @classmethod
    def of(cls, tuned: Tuned, nearest: Nearest) -> NearestStudy:
        """Return the study that is nearest to another one."""
        return cls(
            study=nearest.name,
            is_shipped=nearest.is_shipped,
            has_same_plans=nearest.is_source,
            differences=tuple(tuned.compare(nearest.tuned)),
        )


def print_identity(digest: str, parts: Mapping[str, str]) -> None:
    """Print what makes two tunings the same."""
    table = _table()
    for name, value in parts.items():
        table.add_row(name, Text(value))
    console = make_console()
    console.print(Text(f"problem {digest}"))
    console.print(table)


def print_nearest(tuned: Tuned, nearest: Nearest | None) -> None:
    """Print which part differs from the nearest stored study, and what follows from that."""
    console = make_console()
    if nearest is None:
        console.print(Text("There is no other study to start from."))
        return
    console.print(Text(f"nearest: {_describe(nearest)}"))
    differences = tuned.compare(nearest.tuned)
    if differences:
        console.print(_differences_table(differences))
    console.print(Text(_consequence(nearest, differences)))


def _differences_table(differences: Sequence[Difference]) -> Table:
    table = _table("", "here", "there")
    for difference in differences:
        table.add_row(difference.part, Text(difference.here), Text(difference.there))
    return table


def _describe(nearest: Nearest) -> str:
    return f"study {nearest.name}" + (", which comes with autorecompute" if nearest.is_shipped else "")


def _consequence(nearest: Nearest, differences: Sequence[Difference]) -> str:
    if not nearest.is_source:
        return "its plans are others, or mean something else: it tells nothing of this problem"
    if differences or nearest.is_shipped:
        return "its plans are the same: a tuning starts from what it knows, unless --fresh is given"
    return "it is about the same problem: its answer is taken over, unless --fresh is given"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(columns))
    table.add_column(columns[0] if columns else "", style="dim", no_wrap=True)
    for column in columns[1:] or ("",):
        table.add_column(column, overflow="fold")
    return table
