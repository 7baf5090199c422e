"""The plans of a training graph as text: the summary, and the table of what each plan is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autorecompute.plans import Option
from autorecompute.plans.savings import evaluate
from autorecompute.plans.worth import explain_worthless
from autorecompute.reports.console import make_console

if TYPE_CHECKING:
    from rich.console import Console

    from autorecompute.plans import Activation, Choice, Insight
    from autorecompute.reports.overview import Overview, PlanLine

NUMBERS = frozenset({"plan", "freq", "saving", "ORT states", "byte/elem", "saved", "output", "reuse freq"})
WORDS = frozenset({"config", "saving symbolic", "subgraph", "shape"})
OPTIONS = {Option.RECOMPUTE: "Recompute", Option.RECOMPUTE_WITH_COMPROMISE: "RecomputeWithCompromise"}

STANDING_NOTES = (
    "a saving is of what is kept after the forward pass, not of the peak, which has to be measured",
    "by itself a plan can save less: what it recomputes from is kept instead (an Add+ behind a Dropout, for one)",
    (
        "several plans at a time: list them in the JSON file that ORTMODULE_MEMORY_OPT_CONFIG names (ORT 1.19), "
        "or join them by commas in the variable (1.17, 1.18); ORTMODULE_MEMORY_OPT_LEVEL=1 or 2 takes all in layers"
    ),
)
STATED_NOTE = (
    "! ORT counts only one output of a node that keeps several, and miscounts buffers that outputs of two plans lie "
    "in; the saving here is right in both"
)


def print_summary(overview: Overview, console: Console | None = None) -> None:
    """Prints ORT's switches, a line for each plan, the table of batches, the notes and what to do next."""
    console = console or make_console()
    lines = overview.lines()
    console.print(Text(_describe_optimizer(overview)))
    if lines:
        console.print(_summary_table(lines), Text(), sep="\n")
    if overview.batches and lines:
        console.print(_batch_table(overview, lines), Text(), sep="\n")
    for number, note in enumerate(_notes(overview, lines), start=1):
        console.print(Text(f"Note {number}: {note}"))
    if worthless := explain_worthless(overview.plans, overview.dims):
        console.print(Text(f"\n{worthless}"))
        return
    # A line to paste must not be broken or cut, however narrow the terminal is.
    console.print(Text(f"\nmeasure which of them pay:\n  {overview.command}"), soft_wrap=True)


def print_details(overview: Overview, console: Console | None = None, *, rank: int | None = None) -> None:
    """Prints which activations are kept, in clusters of nodes that are alike, and how each could be recomputed.

    Args:
        overview: What there is.
        console: Where to; ``None`` for standard output.
        rank: Whose it is, where several train together.
    """
    console = console or make_console()
    columns = ("freq", "option", "subgraph", "status", "output", "shape", "byte/elem", "saved", "reuse freq", "saving")
    table = _make_table(*columns)
    for insight in overview.insights:
        _add_insight(table, overview, insight)
    whose = "" if rank is None else f"Rank {rank}: "
    title = f"{whose}Stashed activations, clustered by pattern; the options of a row are mutually exclusive"
    console.print(Text(title))
    console.print(table, Text(), sep="\n")


def _describe_optimizer(overview: Overview) -> str:
    request = overview.request
    on = "ON" if request.is_on else "OFF"
    rows = ", ".join(f"{row.subgraph}:{int(row.option)}:{count}" for row, count in request.counts.items())
    config = rows or ("set by the level" if request.is_on else "none")
    return (
        f"Memory Optimizer: {on}   level {int(request.level)}, probe config {overview.probe_config}, config: {config}"
    )


def _summary_table(lines: list[PlanLine]) -> Table:
    has_stated = any(line.plan.stated_symbolic is not None for line in lines)
    extra = ("ORT states",) if has_stated else ()
    table = _make_table("plan", "status", "config", "freq", "saving", *extra, "saving symbolic")
    for line in lines:
        stated = "" if line.plan.stated_symbolic is None else f"{_count(line.stated_bytes)} !"
        table.add_row(
            str(line.number),
            "ON" if line.is_on else "OFF",
            Text(line.plan.key),
            str(line.plan.frequency),
            _count(line.saving_bytes),
            *([stated] if has_stated else []),
            Text(line.plan.saving_symbolic),
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
        *([f"in ORT's names, {'; '.join(calls)}"] if calls else []),
        *STANDING_NOTES,
    ]
    return [*notes, STATED_NOTE] if any(line.plan.stated_symbolic is not None for line in lines) else notes


def _add_insight(table: Table, overview: Overview, insight: Insight) -> None:
    for number, choice in enumerate(insight.choices, start=1):
        for place, activation in enumerate(choice.activations):
            is_last = number == len(insight.choices) and place == len(choice.activations) - 1
            head = (
                str(insight.frequency) if number == 1 and place == 0 else "",
                *(_describe_choice(overview, number, choice) if place == 0 else ("", Text(), "")),
            )
            table.add_row(*head, *_describe_activation(overview, activation, insight.frequency), end_section=is_last)


def _describe_choice(overview: Overview, number: int, choice: Choice) -> tuple[str, Text, str]:
    count = overview.counts.get(choice.row)
    status = "disabled" if count is None else f"enabled, requested {count}"
    return f"{number} {OPTIONS[choice.row.option]}", Text(choice.row.subgraph), status


def _describe_activation(overview: Overview, activation: Activation, frequency: int) -> tuple[str | Text, ...]:
    return (
        str(activation.output),
        Text(f"[{' x '.join(activation.shape)}]"),
        str(activation.element_bytes),
        f"{activation.saved_percent:g}%",
        str(activation.reuse_frequency or "-"),
        _count(evaluate(f"{frequency}*{activation.saving_symbolic}", overview.dims)),
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
