"""The plans of a script as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autorecompute.errors import UsageError
from autorecompute.plans import Offer, Plan
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.reports.console import make_console
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from autorecompute.plans import Activation, Alternative, Cluster


DOUBLINGS = (-2, -1, 0, 1, 2)
"""The table of batches goes so many doublings down and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLine:
    """One plan of the summary.

    Attributes:
        number: Its place in the list, from 1.
        plan: What it switches.
        requested: How many occurrences are asked for, -1 for all; ``None`` where it is off.
        recomputed: At how many places it is recomputed.
        saving_bytes: What it saves of what the forward pass keeps; ``None`` where a dimension is unknown.
        stated_bytes: What the training system states, where that is another figure.
        bytes_by_batch: The saving at other batches; empty where the model has no such dimension.
    """

    number: int
    plan: Plan
    requested: int | None
    recomputed: int
    saving_bytes: int | None
    stated_bytes: int | None
    bytes_by_batch: dict[int, int | None]

    @property
    def is_on(self) -> bool:
        """Tell whether anything is recomputed for it."""
        return self.recomputed > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that ``plans`` tells.

    Attributes:
        detection: What was found.
        offer: What is offered under what the environment switches on.
        dims: The dimensions at which savings are evaluated.
        command: A command to go on with, to paste.
    """

    detection: Detection
    offer: Offer
    dims: dict[str, int]
    command: str

    @property
    def batches(self) -> list[int]:
        """Return the batches of the table around the one asked for, none where the model has no such dimension."""
        batch = self.dims.get(BATCH)
        return [] if batch is None else sorted({max(1, int(batch * 2.0**doubling)) for doubling in DOUBLINGS})

    def lines(self) -> list[PlanLine]:
        """Return the plans with their figures at ``dims``, largest saving first."""
        plans = sorted(self.offer.plans, key=lambda plan: (-(evaluate(plan.saving, self.dims) or 0), plan.id))
        return [self._line(number, plan) for number, plan in enumerate(plans, start=1)]

    def _line(self, number: int, plan: Plan) -> PlanLine:
        asked = [self.offer.requested.get(choice) for choice in plan.choices]
        recomputed = min(self.offer.recomputed.get(choice, 0) for choice in plan.choices)
        return PlanLine(
            number=number,
            plan=plan,
            requested=None if None in asked else asked[0],
            recomputed=min(recomputed, plan.occurrences) if None not in asked else 0,
            saving_bytes=evaluate(plan.saving, self.dims),
            stated_bytes=None if plan.stated is None else evaluate(plan.stated, self.dims),
            bytes_by_batch={batch: evaluate(plan.saving, {**self.dims, BATCH: batch}) for batch in self.batches},
        )


def choose_dims(detection: Detection, batch: int | None, asked: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the dimensions to evaluate at: those of the first batch, but for what was asked.

    Args:
        detection: What was found.
        batch: The batch, where one was asked for.
        asked: Names and values; a name is one of ours, or of the training system's.

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
WORDS = frozenset({"config", "saving symbolic", "site", "shape"})

STANDING_NOTE = "a saving is of what is kept after the forward pass, not of the peak, which has to be measured"


def print_summary(overview: Overview, console: Console | None = None) -> None:
    """Print what is switched on, a line for each plan, the table of batches, the notes and what to do next."""
    console = console or make_console()
    lines = overview.lines()
    console.print(Text(overview.offer.summary))
    if lines:
        console.print(_summary_table(lines), Text(), sep="\n")
    if overview.batches and lines:
        console.print(_batch_table(overview, lines), Text(), sep="\n")
    for number, note in enumerate(_notes(overview, lines), start=1):
        console.print(Text(f"Note {number}: {note}"))
    if overview.offer.worthless:
        console.print(Text(f"\n{overview.offer.worthless}"))
        return
    # A line to paste must not be broken or cut, however narrow the terminal is.
    console.print(Text(f"\nmeasure which of them pay:\n  {overview.command}"), soft_wrap=True)


def print_details(overview: Overview, console: Console | None = None, *, rank: int | None = None) -> None:
    """Print which activations are kept, in clusters of places that are alike, and how each could be recomputed.

    Prints nothing where the training system has no such list.

    Args:
        overview: What there is.
        console: Where to; ``None`` for standard output.
        rank: Whose it is, where several train together.
    """
    if not overview.offer.clusters:
        return
    console = console or make_console()
    columns = ("freq", "option", "site", "status", "output", "shape", "byte/elem", "saved", "reuse freq", "saving")
    table = _make_table(*columns)
    for cluster in overview.offer.clusters:
        _add_cluster(table, overview, cluster)
    whose = "" if rank is None else f"Rank {rank}: "
    title = f"{whose}Stashed activations, clustered by pattern; the options of a row are mutually exclusive"
    console.print(Text(title))
    console.print(table, Text(), sep="\n")


def _summary_table(lines: list[PlanLine]) -> Table:
    has_stated = any(line.plan.stated is not None for line in lines)
    extra = ("stated",) if has_stated else ()
    table = _make_table("plan", "status", "config", "freq", "saving", *extra, "saving symbolic")
    for line in lines:
        stated = "" if line.plan.stated is None else f"{_count(line.stated_bytes)} !"
        table.add_row(
            str(line.number),
            "ON" if line.is_on else "OFF",
            Text(line.plan.id),
            str(line.plan.occurrences),
            _count(line.saving_bytes),
            *([stated] if has_stated else []),
            Text(line.plan.saving),
        )
    return table


def _batch_table(overview: Overview, lines: list[PlanLine]) -> Table:
    table = _make_table("plan", *(f"batch {batch}" for batch in overview.batches))
    for line in lines:
        table.add_row(str(line.number), *(_count(saved) for saved in line.bytes_by_batch.values()))
    return table


def _notes(overview: Overview, lines: list[PlanLine]) -> list[str]:
    dims, first = overview.dims, overview.detection.dims
    batch = ", ".join(f"{name}={value}" for name, value in dims.items()) or "no symbolic dimension"
    begun = ", ".join(f"{name}={value}" for name, value in first.items())
    aliases = {name: [alias for alias in known if alias != name] for name, known in overview.detection.aliases.items()}
    calls = [f"{name} is {', '.join(others)}" for name, others in aliases.items() if others]
    notes = [
        f"savings in bytes at {batch}" + (f"; the first batch had {begun}" if dims != first else " (the first batch)"),
        *([f"names of the training system: {'; '.join(calls)}"] if calls else []),
        STANDING_NOTE,
        *overview.offer.notes,
    ]
    return [*notes, overview.offer.stated_note] if any(line.plan.stated is not None for line in lines) else notes


def _add_cluster(table: Table, overview: Overview, cluster: Cluster) -> None:
    for number, way in enumerate(cluster.alternatives, start=1):
        for place, activation in enumerate(way.activations):
            is_last = number == len(cluster.alternatives) and place == len(way.activations) - 1
            head = (
                str(cluster.occurrences) if number == 1 and place == 0 else "",
                *(_describe_alternative(overview, number, way) if place == 0 else ("", Text(), "")),
            )
            figures = _describe_activation(overview, activation, cluster.occurrences)
            table.add_row(*head, *figures, end_section=is_last)


def _describe_alternative(overview: Overview, number: int, way: Alternative) -> tuple[str, Text, str]:
    count = overview.offer.requested.get(way.choice)
    status = "disabled" if count is None else f"enabled, requested {count}"
    return f"{number}: {way.choice.option}", Text(way.choice.site), status


def _describe_activation(overview: Overview, activation: Activation, occurrences: int) -> tuple[str | Text, ...]:
    return (
        str(activation.output),
        Text(f"[{' x '.join(activation.shape)}]"),
        str(activation.element_bytes),
        f"{activation.saved_percent:g}%",
        str(activation.reuse_frequency or "-"),
        _count(evaluate(f"{occurrences}*{activation.saving}", overview.dims)),
    )


def _count(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _make_table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in columns:
        is_number = column in NUMBERS or column.startswith("batch ")
        # On a narrow terminal the words wrap, the figures never do.
        table.add_column(column, justify="right" if is_number else "left", no_wrap=column not in WORDS, overflow="fold")
    return table
