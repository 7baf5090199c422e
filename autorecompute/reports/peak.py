"""What the memory of a step is made of, as text: its timeline, what is alive at the peak, why a config saves little."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from autorecompute.memory import Phase, find_chain
from autorecompute.plans import Config
from autorecompute.reports.console import make_console
from autorecompute.reports.words import shorten
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.console import Console

    from autorecompute.memory import Chain, Operation, PeakView, StepProfile, Timeline

COLUMNS = 72
BARS = " ▁▂▃▄▅▆▇█"
LETTERS = {Phase.FORWARD: "f", Phase.LOSS: "L", Phase.BACKWARD: "b", Phase.RECOMPUTE: "r"}
LEGEND = "f forward   L loss   b backward   r recompute"
NODE_WIDTH = 64

MOST_OF_THE_WORK = 0.5
LITTLE_OF_THE_SAVING = 0.5
"""A chain is worth a word where most of the recompute runs before the peak, and most of what was saved comes back."""


def print_peak(view: PeakView, *, is_detailed: bool, console: Console | None = None) -> None:
    """Print the timeline without recompute and that of the config, their figures side by side, and what explains them.

    Args:
        view: What to look at.
        is_detailed: Whether the largest tensors at the config's peak are listed, too.
        console: Where to print.
    """
    console = console or make_console()
    timelines = view.timelines()
    console.print(Text(f"\nOne training step at {_name_dims(view.dims)}, {_describe_origin(view)}"))
    most = max(timeline.peak_bytes for timeline in timelines.values())
    for name, timeline in timelines.items():
        console.print(Text("\n".join(["", *_draw(name, timeline, most)])), soft_wrap=True)
    console.print(Text(f"  {LEGEND}\n"))
    console.print(_figures(timelines), Text(), sep="\n")
    for name, timeline in list(timelines.items())[: None if is_detailed else 1]:
        console.print(Text(f"largest at the peak of {name}"), _alive_table(view, timeline), Text(), sep="\n")
    for line in explain_chain(view):
        console.print(Text(line))


def explain_chain(view: PeakView) -> list[str]:
    """Return why the config saves so little at the peak; nothing where it does not."""
    none = view.model.timeline(Config(), view.dims)
    some = view.model.timeline(view.config, view.dims)
    chain = find_chain(some)
    kept, saved = none.stash_bytes - some.stash_bytes, none.peak_bytes - some.peak_bytes
    if chain.share_of_work < MOST_OF_THE_WORK or saved > LITTLE_OF_THE_SAVING * kept:
        return []
    name = view.describe(view.config)
    through = f"one chain through {_name_layers(chain, some.profile)}"
    return [
        f"why it is so with {name}: off the stash {format_bytes(kept)}, off the peak {format_bytes(saved)}",
        f"  {len(chain.operations)} of {chain.recomputed} recomputed operators run before the peak, {through};",
        f"  {format_bytes(chain.waiting_bytes)} of what they make waits there for its own backward.",
        *_advise(view),
    ]


def _advise(view: PeakView) -> list[str]:
    cuts = [effect.left_out for effect in view.effects() if effect.left_out is not None]
    if not cuts:
        return []
    best = min(cuts, key=lambda forecast: forecast.live_bytes)
    name, held = view.describe(best.config), format_bytes(best.live_bytes)
    return [f"  Leaving out one plan cuts the chain: {name}, {held} at the peak."]


def _name_dims(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dims.items()) or "fixed shapes"


def _describe_origin(view: PeakView) -> str:
    seen = "one on fake tensors" if view.is_by_module else "a profiled one"
    as_seen = "as on fake tensors" if view.is_by_module else "as profiled"
    return f"predicted from {seen} at {_name_dims(view.model.dims)}" if view.is_predicted else as_seen


def _draw(name: str, timeline: Timeline, most: int) -> list[str]:
    operation = timeline.profile.operations[timeline.peak]
    # A step that keeps nothing has a peak of no bytes: its bars are all empty.
    bars = "".join(BARS[round(held / max(most, 1) * (len(BARS) - 1))] for held in _squeeze(timeline.live_bytes))
    node = operation.phase if timeline.profile.by_module else shorten(operation.name, NODE_WIDTH)
    where = f"during {operation.operator} ({node})"
    return [
        f"{name}: {format_bytes(timeline.peak_bytes)} alive at the peak, {where}",
        f"  {bars}",
        f"  {_phases(timeline.profile.operations)}",
    ]


def _squeeze(values: Sequence[int]) -> list[int]:
    """Return the largest value in each of the columns."""
    return [max(values[start:end]) for start, end in _columns(len(values))]


def _phases(operations: Sequence[Operation]) -> str:
    """Return the phase of most operations in each of the columns; the loss, however short, is shown."""
    letters = []
    for start, end in _columns(len(operations)):
        phases = [operation.phase for operation in operations[start:end]]
        letters.append(LETTERS[Phase.LOSS if Phase.LOSS in phases else max(phases, key=phases.count)])
    return "".join(letters)


def _columns(length: int) -> Iterable[tuple[int, int]]:
    count = min(length, COLUMNS)
    edges = [column * length // count for column in range(count + 1)]
    return itertools.pairwise(edges)


def _figures(timelines: Mapping[str, Timeline]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("alive at the peak")
    for name in timelines:
        table.add_column(name, justify="right")
    by_phase = [(timeline.live_by_phase(), timeline.peak) for timeline in timelines.values()]
    table.add_row("all", *(format_bytes(timeline.peak_bytes) for timeline in timelines.values()))
    for phase in Phase:
        table.add_row(f"  made in {phase}", *(format_bytes(live[phase][peak]) for live, peak in by_phase))
    table.add_row("stash, after forward", *(format_bytes(timeline.stash_bytes) for timeline in timelines.values()))
    return table


def _alive_table(view: PeakView, timeline: Timeline) -> Table:
    plans = view.model.plans_by_tensor()
    table = Table(box=None, pad_edge=False, header_style="dim")
    if timeline.profile.by_module:
        table.add_column("size", no_wrap=True)
        table.add_column("what", overflow="fold")
        for tensor, size in timeline.largest_at_peak():
            table.add_row(format_bytes(size), Text(tensor.name))
        return table
    for heading in ("size", "shape", "made by", "in", "node", "plan"):
        # On a narrow terminal the names wrap, the figures never do.
        is_name = heading in {"node", "plan", "shape"}
        table.add_column(heading, no_wrap=not is_name, min_width=len("1023 MiB"), overflow="fold")
    for tensor, size in timeline.largest_at_peak():
        maker = timeline.profile.operations[tensor.first]
        plan = plans.get(tensor.name)
        table.add_row(
            format_bytes(size),
            Text(f"[{' x '.join(tensor.shape)}]"),
            maker.operator,
            maker.phase,
            Text(shorten(maker.name, NODE_WIDTH)),
            Text(plan.label if plan is not None else "-"),
        )
    return table


def _name_layers(chain: Chain, profile: StepProfile) -> str:
    """Return the layers that the chain runs through, in its order."""
    layers = [layer for layer in dict.fromkeys(map(profile.layer_of, chain.operations)) if layer]
    if not layers:
        return "the whole graph"
    return layers[0] if len(layers) == 1 else f"{', '.join(layers[:-1])} and {layers[-1]}"
