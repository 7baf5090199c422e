"""The presets on a machine as a table: their memory there, and how long a step is estimated to take. Nothing ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from autorecompute.reports.console import make_console, make_table
from autorecompute.units import format_bytes, format_scaled, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from autorecompute.memory import Estimate, Forecast, Machine, PeakView


def print_presets(view: PeakView, console: Console | None = None) -> None:
    """Print what each preset takes of the machine; nothing where no machine is known."""
    estimate = view.none.estimate
    if estimate is None:
        return
    console, machine = console or make_console(), estimate.machine
    forecasts = {name: view.model.forecast(config, view.dims) for name, config in view.model.space.presets.items()}
    is_card = any(forecast.reserved_bytes is not None for forecast in forecasts.values())
    memory = ["tensors", *(["allocated", "reserved"] if is_card else [])]
    table = make_table("config", *memory, "FLOPs again", "bytes again", "step, estimated", *(["answer"] * is_card))
    for name, forecast in forecasts.items():
        sizes = [forecast.peak_bytes, *([forecast.allocated_bytes, forecast.reserved_bytes] if is_card else [])]
        answer = [_answer(view, forecast)] if is_card else []
        table.add_row(Text(name), *map(format_bytes, sizes), *_time(forecast.estimate), *answer)
    console.print(Text(f"\nThe presets on {describe_machine(machine)}; nothing was run there"))
    for line in (*_memory_lines(view, is_card=is_card), *_time_lines(estimate)):
        console.print(Text(line))
    console.print(table)


def format_estimate(estimate: Estimate | None) -> str:
    """Return the time of a step: ``~350 ms``, for it is no measurement."""
    if estimate is None:
        return "-"
    seconds = estimate.seconds
    return f"~{format_seconds(seconds)}" if seconds >= 0.01 else f"~{1000 * seconds:.2g} ms"  # noqa: PLR2004


def describe_machine(machine: Machine) -> str:
    """Return the machine in a few words."""
    return machine.name if machine.is_measured else f"the card {machine.name}"


def _time(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return ["-", "-", "-"]
    again = f"+{format_scaled(estimate.operations_again, 'FLOP')}"
    return [again, f"+{format_bytes(estimate.moved_bytes_again)}", format_estimate(estimate)]


def _answer(view: PeakView, forecast: Forecast) -> str:
    """Libraries take memory beyond what is reserved, and an allocator that has too much gives free memory back."""
    limit = view.card_limit
    if limit is None or forecast.allocated_bytes is None or forecast.reserved_bytes is None:
        return "-"
    if forecast.reserved_bytes <= limit:
        return "should fit"
    return "may not fit" if forecast.allocated_bytes <= limit else "too large"


def _memory_lines(view: PeakView, *, is_card: bool) -> Iterator[str]:
    if not is_card:
        return
    limit = format_bytes(view.card_limit)
    whose = "the limit" if view.limit_bytes is not None else "the card's memory"
    yield (
        f"answer: what a model of PyTorch's allocator reserves, beside {whose} of {limit}; CUDA's context and "
        "libraries' workspaces come on top"
    )
    yield "may not fit: only if the allocator can give back enough of what is reserved and not allocated"


def _time_lines(estimate: Estimate) -> Iterator[str]:
    machine = estimate.machine
    speeds = [f"{format_scaled(speed, 'FLOP/s')} ({kind})" for kind, speed in machine.operations_per_second.items()]
    yield (
        f"a step without recompute: {format_scaled(estimate.operations, 'FLOP')}, and "
        f"{format_scaled(estimate.moved_bytes, 'B')} read and written"
    )
    yield (
        f"step, estimated: each operator at {', '.join([*speeds, format_scaled(machine.bytes_per_second, 'B/s')])}, "
        f"whichever takes it longer ({machine.source})"
    )
    if not machine.is_measured:
        yield "no kernel reaches all of that, and nothing is added for it: a step takes longer"
    yield "tune measures how long a step takes"
