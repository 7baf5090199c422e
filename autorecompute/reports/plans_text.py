"""The plans of a script as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from autorecompute.errors import UsageError
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.reports.console import make_console, make_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from autorecompute.plans import Cluster
    from autorecompute.reports.plans_json import OfferedPlan, Overview
    from autorecompute.training_job import Detection


def choose_dims(detection: Detection, batch: int | None, asked: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the dimensions to evaluate at: those of the first batch, but for what was asked.

    A name that is asked for is one of ours, or of the training system's.

    Raises:
        UsageError: there is no such dimension, or it is given twice.
    """
    named = [*([(BATCH, batch)] if batch is not None else []), *asked]
    chosen = [(_resolve(name, detection), value) for name, value in named]
    twice = [name for name, _ in chosen if sum(name == other for other, _ in chosen) > 1]
    if twice:
        raise UsageError(f"The dimension '{twice[0]}' is given twice. Give one value for it.")
    return {**detection.dims, **dict(chosen)}


def _resolve(name: str, detection: Detection) -> str:
    by_alias: Mapping[str, str] = {alias: ours for ours, aliases in detection.aliases.items() for alias in aliases}
    resolved = by_alias.get(name, name)
    if resolved not in detection.dims:
        known = ", ".join(detection.dims) or "none at all"
        raise UsageError(f"The model has no symbolic dimension '{name}'. Choose among: {known}.")
    return resolved


NUMBERS = frozenset({"plan", "freq", "saving", "stated", "byte/elem", "saved", "output", "reuse freq"})
WRAPPED = frozenset({"config", "saving symbolic", "site", "shape"})
"""Columns that wrap on a narrow terminal. Figures never do."""

STANDING_NOTE = "a saving is of what is kept after the forward pass, not of the peak, which has to be measured"


def print_summary(overview: Overview, console: Console | None = None) -> None:
    """Print what is switched on, a line for each plan, the table of batches, the notes and what to do next."""
    console = console or make_console()
    lines = overview.lines()
    console.print(Text(overview.offer.summary))
    if lines:
        console.print(_summary_table(lines), Text(), sep="\n")
    if overview.batches and lines:
        table = _table("plan", *(f"batch {batch}" for batch in overview.batches))
        for line in lines:
            table.add_row(str(line.plan), *map(_count, line.saving_bytes_by_batch.values()))
        console.print(table, Text(), sep="\n")
    for number, note in enumerate(_notes(overview, lines), start=1):
        console.print(Text(f"Note {number}: {note}"))
    if overview.offer.worthless:
        console.print(Text(f"\n{overview.offer.worthless}"))
        return
    # A line to paste must not be broken or cut, however narrow the terminal is.
    console.print(Text(f"\nmeasure which of them pay:\n  {overview.command}"), soft_wrap=True)


def print_details(overview: Overview, console: Console | None = None, *, rank: int | None = None) -> None:
    """Print which activations are kept, in clusters of places that are alike, and how each could be recomputed.

    Prints nothing where the training system has no such list. The rank is given where several train together.
    """
    if not overview.offer.clusters:
        return
    console = console or make_console()
    table = _table("freq", "option", "site", "status", "output", "shape", "byte/elem", "saved", "reuse freq", "saving")
    for cluster in overview.offer.clusters:
        _add_cluster(table, overview, cluster)
    whose = "" if rank is None else f"Rank {rank}: "
    title = f"{whose}Stashed activations, clustered by pattern; the options of a row are mutually exclusive"
    console.print(Text(title))
    console.print(table, Text(), sep="\n")


def _summary_table(lines: list[OfferedPlan]) -> Table:
    has_stated = any(line.is_corrected for line in lines)
    table = _table("plan", "status", "config", "freq", "saving", *["stated"] * has_stated, "saving symbolic")
    for line in lines:
        stated = f"{_count(line.stated_bytes)} !" if line.is_corrected else ""
        table.add_row(
            str(line.plan),
            line.status,
            Text(line.config),
            str(line.frequency),
            _count(line.saving_bytes),
            *[stated] * has_stated,
            Text(line.saving_symbolic),
        )
    return table


def _notes(overview: Overview, lines: list[OfferedPlan]) -> list[str]:
    dims, first = overview.dims, overview.detection.dims
    batch = ", ".join(f"{name}={value}" for name, value in dims.items()) or "no symbolic dimension"
    begun = ", ".join(f"{name}={value}" for name, value in first.items())
    aliases = {name: [alias for alias in known if alias != name] for name, known in overview.detection.aliases.items()}
    calls = [f"{name} is {', '.join(others)}" for name, others in aliases.items() if others]
    return [
        f"savings in bytes at {batch}" + (f"; the first batch had {begun}" if dims != first else " (the first batch)"),
        *([f"names of the training system: {'; '.join(calls)}"] if calls else []),
        STANDING_NOTE,
        *overview.offer.notes,
        *([overview.offer.stated_note] if any(line.is_corrected for line in lines) else []),
    ]


def _add_cluster(table: Table, overview: Overview, cluster: Cluster) -> None:
    for number, way in enumerate(cluster.alternatives, start=1):
        count = overview.offer.requested.get(way.choice)
        status = "disabled" if count is None else f"enabled, requested {count}"
        for place, activation in enumerate(way.activations):
            is_first, is_last = place == 0, place == len(way.activations) - 1
            table.add_row(
                str(cluster.occurrences) if is_first and number == 1 else "",
                f"{number}: {way.choice.option}" if is_first else "",
                Text(way.choice.site if is_first else ""),
                status if is_first else "",
                str(activation.output),
                Text(f"[{' x '.join(activation.shape)}]"),
                str(activation.element_bytes),
                f"{activation.saved_percent:g}%",
                str(activation.reuse_frequency or "-"),
                _count(evaluate(f"{cluster.occurrences}*{activation.saving}", overview.dims)),
                end_section=is_last and number == len(cluster.alternatives),
            )


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _table(*columns: str) -> Table:
    words = {column for column in columns if column not in NUMBERS and not column.startswith("batch ")}
    return make_table(*columns, words=words, whole=set(columns) - WRAPPED)
