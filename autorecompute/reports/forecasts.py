"""What plans and configs should do at dimensions that were never run, as tables; every figure here is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from autorecompute.plans import Config
from autorecompute.reports.console import make_console, make_table
from autorecompute.reports.estimates import describe_machine, format_estimate
from autorecompute.reports.words import shorten
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from autorecompute.memory import Forecast, PeakView

NAME_WIDTH = 60
MOST_ROWS = 12


def print_effects(view: PeakView, console: Console | None = None) -> None:
    """Print what each plan does to the stash, to the peak and to the time, alone and left out of all others."""
    console = console or make_console()
    none, effects = view.none, view.effects()
    if not effects:
        return
    table = make_table("plan", "alone: off the stash", "off the peak", "recompute", "peak of all others")
    for effect in effects:
        table.add_row(
            Text(shorten(effect.plan.label, NAME_WIDTH)),
            format_bytes(none.stash_bytes - effect.alone.stash_bytes),
            format_bytes(none.live_bytes - effect.alone.live_bytes),
            _format_share(effect.alone),
            "-" if effect.left_out is None else format_bytes(effect.left_out.live_bytes),
        )
    of_step = "estimated, as a share of the step" if view.is_by_module else "of a step's kernels"
    console.print(Text(f"\nWhat each plan does, predicted; recompute: time of what runs once more, {of_step}"))
    console.print(table)
    if not view.is_by_module:
        console.print(
            Text("off the stash can be less than stated: masks of a recomputed Dropout stay, inputs have to be kept")
        )
    _print_command(console, "measure which of them pay", view.command)


def print_forecasts(view: PeakView, console: Console | None = None) -> None:
    """Print which configs should hold the limit, those that recompute least first, and up to which batch."""
    assert view.limit_bytes is not None, "without a limit everything fits"
    console = console or make_console()
    limit, found = view.limit_bytes, view.forecasts()
    holding = [forecast for forecast in found if forecast.peak_bytes <= limit]
    wanted = [forecast for forecast in found if forecast.config in {Config(), view.config}]
    shown = list(dict.fromkeys([*wanted, *(holding[:MOST_ROWS] or sorted(found, key=_peak)[:1])]))
    reserved = ["reserved"] if any(forecast.reserved_bytes is not None for forecast in shown) else []
    table = make_table("config", "peak", *reserved, "recompute", "answer", "fits up to batch")
    for forecast in shown:
        table.add_row(
            Text(shorten(view.describe(forecast.config), NAME_WIDTH)),
            format_bytes(forecast.peak_bytes),
            *(format_bytes(forecast.reserved_bytes) for _ in reserved),
            _format_share(forecast),
            _answer(forecast, limit),
            _format_batches(view, forecast.config),
        )
    at = ", ".join(f"{name} {value}" for name, value in view.dims.items())
    console.print(Text(f"\nDoes it fit {format_bytes(limit)} at {at}? Predicted, nothing was measured there:"), end=" ")
    console.print(Text(f"{view.model.likely_error:.0%} off as a rule, {view.none.error_share:.0%} at worst"))
    console.print(Text(f"{len(holding)} of {len(found)} configs should, those that recompute least first"))
    console.print(table)
    console.print(
        Text(f"up to which batch: the smaller one where a peak is {view.model.likely_error:.0%} higher than predicted")
    )
    _print_command(console, _advise(holding), view.command)


def print_frontier(view: PeakView, console: Console | None = None) -> None:
    """Print the configs that no other beats in both peak and recompute; a few of them where there are many."""
    if not view.frontier:
        return
    console = console or make_console()
    estimate = view.none.estimate
    time = ["step, estimated"] if estimate is not None else []
    table = make_table("config", "peak", "recompute", *time, *(["answer"] if view.limit_bytes is not None else []))
    few = _spread(view.frontier[::-1], MOST_ROWS)
    for forecast in few:
        answer = [_answer(forecast, view.limit_bytes)] if view.limit_bytes is not None else []
        name = Text(shorten(view.describe(forecast.config), NAME_WIDTH))
        seconds = [format_estimate(forecast.estimate)] if estimate is not None else []
        table.add_row(name, format_bytes(forecast.peak_bytes), _format_share(forecast), *seconds, *answer)
    where = f"; steps are those of {describe_machine(estimate.machine)}" if estimate is not None else ""
    console.print(Text(f"\nThe frontier: no other config has a lower peak without more recompute, predicted{where}"))
    console.print(Text(f"{len(few)} of {len(view.frontier)} configs are shown; --json has all"))
    console.print(table)


def print_batches(view: PeakView, console: Console | None = None) -> None:
    """Print the peak of each preset at each of the batches that were asked for."""
    if not view.batches:
        return
    console = console or make_console()
    largest = ["largest that should fit"] if view.limit_bytes is not None else []
    table = make_table("config", *(f"batch {batch}" for batch in view.batches), *largest)
    for name, peaks in view.presets_by_batch().items():
        most = view.largest_listed(peaks)
        fitting = ["none" if most == 0 else str(most)] if most is not None else []
        table.add_row(Text(name), *(format_bytes(found.peak_bytes) for found in peaks.values()), *fitting)
    console.print(Text("\nPeaks of the presets by batch, predicted"))
    console.print(table)


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
    """Up to which batch a config fits: where its peak is as much higher as it may well be, and as predicted."""
    most = view.largest_batch(config)
    if view.limit_bytes is None or most is None:
        return "-"
    near = replace(view, limit_bytes=round(view.limit_bytes / (1 + view.model.likely_error))).largest_batch(config)
    return str(most) if near == most else f"{near} to {most}"


def _advise(holding: list[Forecast]) -> str:
    if any(forecast.config.is_none for forecast in holding):
        return "it should fit as it is; to be sure"
    return "measure which holds it at the highest throughput" if holding else "no config should fit; to be sure"


def _print_command(console: Console, purpose: str, command: str) -> None:
    # A line to paste must not be broken or cut, however narrow the terminal is.
    console.print(Text(f"\n{purpose}:\n  {command}"), soft_wrap=True)


def _peak(forecast: Forecast) -> int:
    return forecast.peak_bytes


def _format_share(forecast: Forecast) -> str:
    return f"+{forecast.recompute_share:.0%}"
