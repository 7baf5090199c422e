"""What each part of a check means: the rules, without a process."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from autorecompute.measurement import Measurement, Outcome
from autorecompute.studies.checked import CheckLine, CheckVerdict
from autorecompute.units import format_bytes, format_count, format_rate, format_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import GradientCheck
    from autorecompute.plans import Config
    from autorecompute.result import Best
    from autorecompute.training_job import Detection

PEAK_TOLERANCE = 0.05
"""A peak that differs by more than this share is reported, even within the limit."""

PEAK_NOISE = 0.01
"""Peaks of the same steps differ by this share from process to process, on a CPU. No card lets more than the limit."""

RELATIVE_TOLERANCE = 0.15
"""Even the best round is slower than stored by more than this share where a config fails: taken side by side, the
throughput relative to no recompute hardly depends on what else the machine does."""

LOOSEST = 0.30
"""Where the stored throughput was known less well, its interval counts, down to this share below it."""

RATE_TOLERANCE = 0.30
"""The same for samples/s, which processes minutes apart on a shared machine do not agree about."""

BROKEN = {Outcome.CRASH, Outcome.HANG, Outcome.TIMEOUT}
"""How a process ends of what it was ordered to do. Others end for want of memory, or by the script."""


def check_plans(config: Config, detection: Detection) -> CheckLine:
    """Tell whether the model still offers every choice of the config: some training systems ignore others silently."""
    space = detection.space
    presets = [name for name, preset in space.opaque_presets.items() if preset == config]
    known = [choice for plan in space.plans for choice in plan.choices]
    missing = sorted(str(on) for on in config.choices if not any(on.covers(choice) for choice in known))
    if presets:
        missing = []
    return CheckLine(
        what="plans",
        stored=f"{format_count(len(config.choices), 'choice')} on",
        here=f"{len(config.choices) - len(missing)} detected",
        verdict=CheckVerdict.FAILS if missing else CheckVerdict.OK,
        note=f"{', '.join(missing)} would be ignored" if missing else "",
    )


def check_peak(peak_bytes: int, stored_bytes: int | None, best: Best) -> CheckLine:
    """Return the peak of the steps beside the limit, and beside what the config's trial had."""
    stored = best.peak_bytes if stored_bytes is None else stored_bytes
    expected = peak_bytes + best.peak_bytes - stored
    verdict, note = CheckVerdict.OK, f"limit {format_bytes(best.limit_bytes)}"
    if peak_bytes > best.limit_bytes:
        is_noise = peak_bytes <= best.limit_bytes * (1 + PEAK_NOISE)
        verdict = CheckVerdict.DIFFERS if is_noise else CheckVerdict.FAILS
        above = format_bytes(peak_bytes - best.limit_bytes)
        note = f"{above} above the limit{', as peaks of the same steps may be' if is_noise else ''}"
    elif expected > best.limit_bytes:
        verdict = CheckVerdict.DIFFERS
        note = f"a whole process may need {format_bytes(expected)}, above the limit of {format_bytes(best.limit_bytes)}"
    elif abs(peak_bytes / stored - 1) > PEAK_TOLERANCE:
        verdict = CheckVerdict.DIFFERS
    return CheckLine(
        what="peak of a step", stored=format_bytes(stored), here=format_bytes(peak_bytes), verdict=verdict, note=note
    )


def check_gradients(check: GradientCheck | Measurement) -> CheckLine:
    """Return the gradients beside those without recompute, which have to be compared."""
    if isinstance(check, Measurement):
        verdict = CheckVerdict.FAILS if check.outcome in BROKEN else CheckVerdict.NOT_COMPARED
        return _not_compared(verdict, f"{check.outcome}: {check.message}")
    if not check.steps:
        return _not_compared(CheckVerdict.NOT_COMPARED, check.message)
    here = "wrong" if not check.agrees else "equal" if check.worst == 0 else f"within {check.worst:.1e}"
    verdict = CheckVerdict.OK if check.agrees else CheckVerdict.FAILS
    note = check.message or ("" if check.agrees else f"{check.parameter} is off by {check.worst:.1e}")
    return CheckLine(what="gradients", stored="equal", here=here, verdict=verdict, note=note)


def _not_compared(verdict: CheckVerdict, note: str) -> CheckLine:
    return CheckLine(what="gradients", stored="equal", here="not compared", verdict=verdict, note=note)


def check_relative(ratios: Sequence[float], best: Best) -> CheckLine:
    """Throughput as a share of that without recompute, from rounds beside it."""
    stored = best.relative_throughput
    assert stored is not None, "rounds beside no recompute need a stored ratio"
    least = stored * (1 - RELATIVE_TOLERANCE)
    if best.relative_low is not None:
        least = min(least, max(best.relative_low, stored * (1 - LOOSEST)))
    note = f"the best round counts, at least {least:.2f}x is wanted"
    return _speed_line("relative throughput", f"{stored:.2f}x", ratios, "{:.2f}".format, "x", least=least, note=note)


def check_speed(rates: Sequence[float], best: Best, *, is_same_device: bool) -> CheckLine:
    """Samples/s, on the device that they were stored for."""
    least = best.samples_per_second * (1 - RATE_TOLERANCE)
    if not is_same_device:
        least, note = 0.0, "another device: not compared"
    else:
        note = f"the best window counts, at least {format_rate(least)} are wanted"
    stored = format_rate(best.samples_per_second)
    line = _speed_line("throughput", stored, rates, format_samples, " samples/s", least=least, note=note)
    if is_same_device:
        return line
    return CheckLine(
        what=line.what, stored=line.stored, here=line.here, verdict=CheckVerdict.NOT_CHECKED, note=line.note
    )


def _speed_line(  # noqa: PLR0913  (what a figure is printed with, and held against)
    what: str, stored: str, found: Sequence[float], form: Callable[[float], str], unit: str, *, least: float, note: str
) -> CheckLine:
    here = f"{form(statistics.median(found))}{unit} ({form(min(found))}-{form(max(found))})"
    verdict = CheckVerdict.OK if max(found) >= least else CheckVerdict.FAILS
    return CheckLine(what=what, stored=stored, here=here, verdict=verdict, note=note)
