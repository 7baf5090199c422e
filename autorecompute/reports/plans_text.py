"""The output of ``plans``: plans of a script, forecasts of their peaks, and the memory timeline of a step."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from autorecompute.errors import UsageError
from autorecompute.memory import Phase
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.reports.console import make_table, shorten
from autorecompute.units import KIB, format_bytes, format_samples, format_scaled, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import Console
    from rich.table import Table

    from autorecompute.memory import Estimate, Forecast, Machine, Timeline
    from autorecompute.reports.peak_view import PeakView
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


NUMBERS = frozenset({"plan", "places", "saving", "stated", "bytes each", "saved", "output", "reused"})
WRAPPED = frozenset({"config", "formula, in bytes", "site", "shape"})
"""Columns that wrap on a narrow terminal. Figures never do."""

STANDING_NOTE = "a saving is of what is kept after the forward pass, not of the peak, which has to be measured"


def print_summary(overview: Overview, console: Console, *, is_detailed: bool = False) -> None:
    """Print what is switched on, a line for each plan, the table of batches, the notes and what to do next.

    With details each plan has the formula of its saving, and the notes tell the training system's names of dimensions.
    """
    lines = overview.lines()
    console.print(Text(overview.offer.summary))
    if lines:
        has_stated = any(line.is_corrected for line in lines)
        formula = ["formula, in bytes"] * is_detailed
        table = _table("plan", "status", "config", "places", "saving", *["stated"] * has_stated, *formula)
        for line in lines:
            stated = [f"{_size(line.stated_bytes)} !" if line.is_corrected else ""] * has_stated
            figures = (str(line.frequency), _size(line.saving_bytes), *stated)
            symbolic = [Text(line.saving_symbolic)] * is_detailed
            table.add_row(str(line.plan), line.status, Text(line.config), *figures, *symbolic)
        console.print(table, Text(), sep="\n")
    if overview.batches and lines:
        table = _table("plan", *(f"batch {batch}" for batch in overview.batches))
        for line in lines:
            table.add_row(str(line.plan), *map(_size, line.saving_bytes_by_batch.values()))
        console.print(table, Text(), sep="\n")
    for number, note in enumerate(_notes(overview, lines, is_detailed=is_detailed), start=1):
        console.print(Text(f"Note {number}: {note}"))
    if overview.offer.worthless:
        console.print(Text(f"\n{overview.offer.worthless}"))
        return
    _print_command(console, "measure which of them pay", overview.command)


def print_details(overview: Overview, console: Console, *, rank: int | None = None) -> None:
    """Print which activations are kept, in clusters of places that are alike, and how each could be recomputed.

    Prints nothing where the training system has no such list. The rank is given where several train together.
    """
    if not overview.offer.clusters:
        return
    table = _table("places", "option", "site", "status", "output", "shape", "bytes each", "saved", "reused", "saving")
    for cluster in overview.offer.clusters:
        for number, way in enumerate(cluster.alternatives, start=1):
            count = overview.offer.requested.get(way.choice)
            status = "disabled" if count is None else f"enabled, requested {count}"
            frequency = str(cluster.occurrences) if number == 1 else ""
            head: tuple[str | Text, ...] = (frequency, f"{number}: {way.choice.option}", Text(way.choice.site), status)
            for activation in way.activations:
                table.add_row(
                    *head,
                    str(activation.output),
                    Text(f"[{' x '.join(activation.shape)}]"),
                    str(activation.element_bytes),
                    f"{activation.saved_percent:g}%",
                    str(activation.reuse_frequency or "-"),
                    _size(evaluate(f"{cluster.occurrences}*{activation.saving}", overview.dims)),
                )
                head = ("",) * len(head)
    whose = "" if rank is None else f"Rank {rank}: "
    title = f"{whose}Stashed activations, clustered by pattern; the options of a row are mutually exclusive"
    console.print(Text(title))
    console.print(table, Text(), sep="\n")


def _notes(overview: Overview, lines: list[OfferedPlan], *, is_detailed: bool) -> list[str]:
    dims, first = overview.dims, overview.detection.dims
    aliases = {name: [alias for alias in known if alias != name] for name, known in overview.detection.aliases.items()}
    calls = [f"{name} is {', '.join(others)}" for name, others in aliases.items() if others]
    return [
        f"savings at {_name_dims(dims)}"
        + (f"; the first batch had {_name_dims(first)}" if dims != first else " (the first batch)"),
        *([f"names of the training system: {'; '.join(calls)}"] if calls and is_detailed else []),
        STANDING_NOTE,
        *overview.offer.notes,
        *([overview.offer.stated_note] if any(line.is_corrected for line in lines) else []),
    ]


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    return format_bytes(size) if size >= KIB else f"{size} bytes"


def _table(*columns: str) -> Table:
    words = {column for column in columns if column not in NUMBERS and not column.startswith("batch ")}
    return make_table(*columns, words=words, whole=set(columns) - WRAPPED)


WORDS = frozenset({"plan", "card", "config", "answer"})
"""Columns of words. All others hold figures."""
NAME_WIDTH = 60
MOST_ROWS = 12


def _print_columns(console: Console, lines: Iterable[str], columns: Mapping[str, Iterable[str]]) -> None:
    """Print lines, and below them a table of columns by their headings; a column without cells is left out."""
    cells = {heading: found for heading, texts in columns.items() if (found := list(texts))}
    table = make_table(*cells, words=WORDS)
    for row in zip(*cells.values(), strict=True):
        table.add_row(*map(Text, row))
    for line in lines:
        console.print(Text(line))
    console.print(table)


def _names(view: PeakView, forecasts: Iterable[Forecast]) -> list[str]:
    return [shorten(view.model.space.describe(forecast.config), NAME_WIDTH) for forecast in forecasts]


def _presets(view: PeakView) -> dict[str, Forecast]:
    return {name: view.model.forecast(config, view.dims) for name, config in view.model.space.presets.items()}


def print_rank(view: PeakView, console: Console) -> None:
    """Print what the peak of each preset is made of on one rank; nothing where one rank was not asked for."""
    peaks = {name: forecast.rank for name, forecast in _presets(view).items() if forecast.rank is not None}
    if not peaks:
        return
    found = list(peaks.values())
    lines = [
        f"\nThe peak of one of {found[0].ranks} ranks, by what it is made of; no other rank was there",
        "gathered: parameters gathered from all ranks, and buffers in which gradients are reduced",
    ]
    columns = {
        "config": peaks,
        "peak": [format_bytes(peak.peak_bytes) for peak in found],
        "parameters": [format_bytes(peak.parameter_bytes) for peak in found],
        "gradients": [format_bytes(peak.gradient_bytes) for peak in found],
        "state": [format_bytes(peak.state_bytes) for peak in found],
        "gathered": [format_bytes(peak.gathered_bytes) for peak in found],
        "activations": [format_bytes(peak.activation_bytes) for peak in found],
    }
    _print_columns(console, lines, columns)


def print_presets(view: PeakView, console: Console) -> None:
    """Print what each preset takes of the machine; nothing where no machine is known."""
    estimate, machine = view.none.estimate, view.none.machine
    if estimate is None or machine is None:
        return
    presets = _presets(view)
    found = list(presets.values())
    card = [forecast for forecast in found if any(other.reserved_bytes is not None for other in found)]
    estimates = [forecast.estimate for forecast in found]
    columns = {
        "config": presets,
        "tensors": [format_bytes(forecast.peak_bytes) for forecast in found],
        "allocated": [format_bytes(forecast.allocated_bytes) for forecast in card],
        "reserved": [format_bytes(forecast.reserved_bytes) for forecast in card],
        "FLOPs again": [f"+{format_scaled(one.flops_again, 'FLOP')}" if one else "-" for one in estimates],
        "bytes again": [f"+{format_bytes(one.moved_bytes_again)}" if one else "-" for one in estimates],
        "step, estimated": map(format_estimate, estimates),
        "samples/s": [_format_samples_of(view, forecast) for forecast in found],
        "answer": [_answer_on_card(view, forecast) for forecast in card],
        "largest batch": [_format_largest(view, forecast) for forecast in card],
    }
    head = f"\nThe presets on {describe_machine(machine)}; nothing was run there"
    memory = _memory_lines(view) if card else ()
    _print_columns(console, [head, *memory, *_time_lines(estimate, machine)], columns)


def print_cards(views: Sequence[PeakView], console: Console) -> None:
    """Print the presets on several cards in one table."""
    rows = [(view, name, forecast) for view in views for name, forecast in _presets(view).items()]
    columns = {
        "card": [view.none.machine.name if view.none.machine else "-" for view, *_ in rows],
        "config": [name for _, name, _ in rows],
        "reserved": [format_bytes(forecast.reserved_bytes) for *_, forecast in rows],
        "of": [format_bytes(view.card_limit) for view, *_ in rows],
        "samples/s": [_format_samples_of(view, forecast) for view, _, forecast in rows],
        "answer": [_answer_on_card(view, forecast) for view, _, forecast in rows],
        "largest batch": [_format_largest(view, forecast) for view, _, forecast in rows],
    }
    at = _name_dims(views[0].dims)
    _print_columns(console, [f"\nThe presets on {len(views)} cards, forecast at {at}; nothing was run there"], columns)
    console.print(Text("samples/s: at the full speed of the card, which no training reaches; they rank configs"))
    console.print(Text("largest batch: where the allocator reserves as much beyond its tensors as at this one"))


def _format_samples_of(view: PeakView, forecast: Forecast) -> str:
    """Return the samples a second of one forward pass, estimated; a dash where nobody knows."""
    batch, estimate = view.dims.get(BATCH), forecast.estimate
    if batch is None or estimate is None or not estimate.step_seconds:
        return "-"
    return f"~{format_samples(batch / estimate.step_seconds)}"


def _format_largest(view: PeakView, forecast: Forecast) -> str:
    largest = view.largest_batch_on_card(forecast)
    return "-" if largest is None else str(largest or "none")


def format_estimate(estimate: Estimate | None) -> str:
    """Return the time of a step: ``~350 ms``, for it is no measurement."""
    if estimate is None:
        return "-"
    seconds = estimate.step_seconds
    return f"~{format_seconds(seconds)}" if seconds >= 0.01 else f"~{1000 * seconds:.2g} ms"  # noqa: PLR2004


def describe_machine(machine: Machine) -> str:
    """Return the machine in a few words."""
    return machine.name if machine.is_measured else f"the card {machine.name}"


def _answer_on_card(view: PeakView, forecast: Forecast) -> str:
    """Return whether the card has room for it: an allocator that reserved too much gives free memory back."""
    limit = view.card_limit
    if limit is None or forecast.allocated_bytes is None or forecast.reserved_bytes is None:
        return "-"
    if forecast.reserved_bytes <= limit:
        return "should fit"
    return "may not fit" if forecast.allocated_bytes <= limit else "too large"


def _memory_lines(view: PeakView) -> Iterator[str]:
    limit = format_bytes(view.card_limit)
    whose = "the limit" if view.limit_bytes is not None else "the card's memory"
    yield (
        f"answer: what a model of PyTorch's allocator reserves, beside {whose} of {limit}; CUDA's context and "
        "libraries' workspaces come on top"
    )
    yield "may not fit: only if the allocator can give back enough of what is reserved and not allocated"


def _time_lines(estimate: Estimate, machine: Machine) -> Iterator[str]:
    speeds = [f"{format_scaled(speed, 'FLOP/s')} ({kind})" for kind, speed in machine.operations_per_second.items()]
    yield (
        f"a step without recompute: {format_scaled(estimate.flops, 'FLOP')}, and "
        f"{format_scaled(estimate.moved_bytes, 'B')} read and written"
    )
    yield (
        f"step, estimated: each operator at {', '.join([*speeds, format_scaled(machine.bytes_per_second, 'B/s')])}, "
        f"whichever takes it longer ({machine.source})"
    )
    if not machine.is_measured:
        yield "no kernel reaches all of that, and nothing is added for it: a step takes longer"
    yield "tune measures how long a step takes"


def print_effects(view: PeakView, console: Console) -> None:
    """Print what each plan does to the stash, to the peak and to the time, alone and left out of all others."""
    none, effects = view.none, view.model.effects(view.dims)
    if not effects:
        return
    plans, alone, left_out = zip(*effects, strict=True)
    of_step = "estimated, as a share of the step" if view.is_by_module else "of a step's kernels"
    columns = {
        "plan": [shorten(plan.label, NAME_WIDTH) for plan in plans],
        "alone: off the stash": [format_bytes(none.stash_bytes - forecast.stash_bytes) for forecast in alone],
        "off the peak": [format_bytes(none.live_bytes - forecast.live_bytes) for forecast in alone],
        "recompute": map(_format_share, alone),
        "peak of all others": [format_bytes(one.live_bytes) if one else "-" for one in left_out],
    }
    head = f"\nWhat each plan does, predicted; recompute: time of what runs once more, {of_step}"
    _print_columns(console, [head], columns)
    if not view.is_by_module:
        console.print(
            Text("off the stash can be less than stated: masks of a recomputed Dropout stay, inputs have to be kept")
        )
    _print_command(console, "measure which of them pay", view.command)


def print_forecasts(view: PeakView, console: Console) -> None:
    """Print which configs should hold the limit, those that recompute least first, and up to which batch."""
    assert view.limit_bytes is not None, "without a limit everything fits"
    limit, found, likely_error = view.limit_bytes, view.model.forecasts(view.dims), view.model.likely_error
    holding = [forecast for forecast in found if forecast.peak_bytes <= limit]
    wanted = [forecast for forecast in found if forecast.config in {Config(), view.config}]
    least = sorted(found, key=lambda forecast: forecast.peak_bytes)[:1]
    shown = list(dict.fromkeys([*wanted, *(holding[:MOST_ROWS] or least)]))
    has_reserved = any(forecast.reserved_bytes is not None for forecast in shown)
    columns = {
        "config": _names(view, shown),
        "peak": [format_bytes(forecast.peak_bytes) for forecast in shown],
        "reserved": [format_bytes(forecast.reserved_bytes) for forecast in shown if has_reserved],
        "recompute": map(_format_share, shown),
        "answer": [_answer(forecast, limit) for forecast in shown],
        "fits up to batch": [_format_batches(view, forecast.config) for forecast in shown],
    }
    at = _name_dims(view.dims)
    errors = f"{likely_error:.0%} off as a rule, {view.none.error_share:.0%} at worst"
    lines = [
        f"\nDoes it fit {format_bytes(limit)} at {at}? Predicted, nothing was measured there: {errors}",
        f"{len(holding)} of {len(found)} configs should, those that recompute least first",
    ]
    _print_columns(console, lines, columns)
    console.print(Text(f"up to which batch: the smaller one where a peak is {likely_error:.0%} higher than predicted"))
    advice = "measure which holds it at the highest throughput" if holding else "no config should fit; to be sure"
    if any(forecast.config.is_none for forecast in holding):
        advice = "it should fit as it is; to be sure"
    _print_command(console, advice, view.command)


def print_frontier(view: PeakView, console: Console) -> None:
    """Print the configs that no other beats in both peak and recompute; a few of them where there are many."""
    if not view.frontier:
        return
    machine, limit = view.none.machine, view.limit_bytes
    few = _spread(view.frontier[::-1], MOST_ROWS)
    columns = {
        "config": _names(view, few),
        "peak": [format_bytes(forecast.peak_bytes) for forecast in few],
        "recompute": map(_format_share, few),
        "step, estimated": [format_estimate(forecast.estimate) for forecast in few if machine is not None],
        "answer": [_answer(forecast, limit) for forecast in few if limit is not None],
    }
    where = f"; steps are those of {describe_machine(machine)}" if machine is not None else ""
    lines = [
        f"\nThe frontier: no other config has a lower peak without more recompute, predicted{where}",
        f"{len(few)} of {len(view.frontier)} configs are shown; --json has all",
    ]
    _print_columns(console, lines, columns)


def print_batches(view: PeakView, console: Console) -> None:
    """Print the peak of each preset at each of the batches that were asked for."""
    if not view.batches:
        return
    presets = view.presets_by_batch()
    largest = [view.largest_listed(peaks) for peaks in presets.values()]
    columns = {
        "config": presets,
        **{
            f"batch {batch}": [format_bytes(peaks[batch].peak_bytes) for peaks in presets.values()]
            for batch in view.batches
        },
        "largest that should fit": [str(most or "none") for most in largest if most is not None],
    }
    _print_columns(console, ["\nPeaks of the presets by batch, predicted"], columns)


def print_lengths(view: PeakView, console: Console) -> None:
    """Print the peak of each preset at the lengths of batches that were looked at, and up to which batch it fits."""
    rows = list(view.presets_by_length())
    if not rows:
        return
    limit = view.limit_bytes
    columns = {
        "tokens": [str(length) for length, *_ in rows],
        "config": [name for _, name, *_ in rows],
        "peak": [format_bytes(forecast.peak_bytes) for *_, forecast in rows],
        "answer": [_answer(forecast, limit) for *_, forecast in rows if limit is not None],
        "fits up to batch": [_format_batches(at, one.config) for *_, at, one in rows if limit is not None],
    }
    _print_columns(console, ["\nPeaks of the presets by the length of a batch, predicted"], columns)


def _spread(forecasts: Sequence[Forecast], most: int) -> list[Forecast]:
    """Return so many of them, evenly spread over the peaks, the first and the last among them."""
    if len(forecasts) <= most:
        return list(forecasts)
    sizes = np.array([forecast.peak_bytes for forecast in forecasts])
    places = sorted({int(np.abs(sizes - size).argmin()) for size in np.linspace(sizes[0], sizes[-1], most)})
    return [forecasts[place] for place in places]


def _answer(forecast: Forecast, limit_bytes: int) -> str:
    if forecast.peak_bytes <= limit_bytes:
        return "should fit" if forecast.is_near(limit_bytes) else "fits"
    return "may not fit" if forecast.is_near(limit_bytes) else "too large"


def _format_batches(view: PeakView, config: Config) -> str:
    """Return up to which batch a config fits: where its peak is as much higher as it may well be, and as predicted."""
    most = view.largest_batch(config)
    if view.limit_bytes is None or most is None:
        return "-"
    near = replace(view, limit_bytes=round(view.limit_bytes / (1 + view.model.likely_error))).largest_batch(config)
    return str(most) if near == most else f"{near} to {most}"


def _print_command(console: Console, purpose: str, command: str) -> None:
    # A line to paste must not be broken or cut, however narrow the terminal is.
    console.print(Text(f"\n{purpose}:\n  {command}"), soft_wrap=True)


def _format_share(forecast: Forecast) -> str:
    return f"+{forecast.recompute_share:.0%}"


COLUMNS = 72
BARS = " ▁▂▃▄▅▆▇█"
LETTERS = {Phase.FORWARD: "f", Phase.LOSS: "L", Phase.BACKWARD: "b", Phase.RECOMPUTE: "r"}
LEGEND = "f forward   L loss   b backward   r recompute"
NODE_WIDTH = 64

MOST_OF_THE_WORK = 0.5
LITTLE_OF_THE_SAVING = 0.5
"""A chain is worth a word where most of the recompute runs before the peak, and most of what was saved comes back."""


def print_peak(view: PeakView, console: Console, *, is_detailed: bool) -> None:
    """Print the timeline without recompute and that of the config, their figures side by side, and what explains them.

    With details the largest tensors at the config's peak are listed, too.
    """
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
    before, after = some.recomputed()
    kept, saved = none.stash_bytes - some.stash_bytes, none.peak_bytes - some.peak_bytes
    is_chain = before and len(before) >= MOST_OF_THE_WORK * len(before + after)
    if not is_chain or saved > LITTLE_OF_THE_SAVING * kept:
        return []
    layers = [layer for layer in dict.fromkeys(map(some.profile.layer_of, before)) if layer]
    where = " and ".join([", ".join(layers[:-1]), *layers[-1:]] if len(layers) > 1 else layers) or "the whole graph"
    describe, waiting_bytes = view.model.space.describe, some.live_by_phase()[Phase.RECOMPUTE][some.peak]
    name, through = describe(view.config), f"one chain through {where}"
    lines = [
        f"why it is so with {name}: off the stash {format_bytes(kept)}, off the peak {format_bytes(saved)}",
        f"  {len(before)} of {len(before + after)} recomputed operators run before the peak, {through};",
        f"  {format_bytes(waiting_bytes)} of what they make waits there for its own backward.",
    ]
    cuts = [left_out for *_, left_out in view.model.effects(view.dims) if left_out is not None]
    if cuts:
        best = min(cuts, key=lambda forecast: forecast.live_bytes)
        held = f"{describe(best.config)}, {format_bytes(best.live_bytes)} at the peak"
        lines.append(f"  Leaving out one plan cuts the chain: {held}.")
    return lines


def _name_dims(dims: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in dims.items()) or "fixed shapes"


def _describe_origin(view: PeakView) -> str:
    if not view.is_predicted:
        return "as on fake tensors" if view.is_by_module else "as profiled"
    seen = "one on fake tensors" if view.is_by_module else "a profiled one"
    return f"predicted from {seen} at {_name_dims(view.model.dims)}"


def _draw(name: str, timeline: Timeline, most: int) -> list[str]:
    """Return the highest memory in each of the columns as a bar, and the phase of most operations in it below."""
    operations = timeline.profile.operations
    peak = operations[timeline.peak]
    columns = min(len(operations), COLUMNS)
    stretches = itertools.pairwise(column * len(operations) // columns for column in range(columns + 1))
    bars, letters = "", ""
    for start, end in stretches:
        # A step that keeps nothing has a peak of no bytes: its bars are all empty.
        bars += BARS[round(max(timeline.live_bytes[start:end]) / max(most, 1) * (len(BARS) - 1))]
        phases = [operation.phase for operation in operations[start:end]]
        # The loss, however short, is shown.
        letters += LETTERS[Phase.LOSS if Phase.LOSS in phases else max(phases, key=phases.count)]
    node = peak.phase if timeline.profile.by_module else shorten(peak.name, NODE_WIDTH)
    where = f"during {peak.operator} ({node})"
    return [f"{name}: {format_bytes(timeline.peak_bytes)} alive at the peak, {where}", f"  {bars}", f"  {letters}"]


def _figures(timelines: Mapping[str, Timeline]) -> Table:
    table = make_table("alive at the peak", *timelines, words={"alive at the peak"})
    by_phase = [(timeline.live_by_phase(), timeline.peak) for timeline in timelines.values()]
    table.add_row("all", *(format_bytes(timeline.peak_bytes) for timeline in timelines.values()))
    for phase in Phase:
        table.add_row(f"  made in {phase}", *(format_bytes(live[phase][peak]) for live, peak in by_phase))
    table.add_row("stash, after forward", *(format_bytes(timeline.stash_bytes) for timeline in timelines.values()))
    return table


def _alive_table(view: PeakView, timeline: Timeline) -> Table:
    if timeline.profile.by_module:
        table = make_table("size", "what", whole={"size"})
        for tensor, size in timeline.largest_at_peak():
            table.add_row(format_bytes(size), Text(tensor.name))
        return table
    plans = view.model.plans_by_tensor()
    # On a narrow terminal the names wrap, the figures never do.
    table = make_table("size", "shape", "made by", "in", "node", "plan", whole={"size", "made by", "in"})
    for column in table.columns:
        column.min_width = len("1023 MiB")
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
