"""Memory against throughput in characters, for the live view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.figures import format_relative
from autorecompute.units import format_bytes, format_samples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial

LABEL_WIDTH = 7
LEAST_TRIALS = 2


@dataclass(frozen=True, slots=True)
class Marks:
    """The characters of a drawing.

    Attributes:
        fits: A trial that holds the limit.
        over: One that does not.
        best: The fastest that does.
        limit: The memory limit.
        axis: Left of the drawing.
    """

    fits: str
    over: str
    best: str
    limit: str
    axis: str


DRAWN = Marks(fits="●", over="○", best="★", limit="┊", axis="│")
TYPED = Marks(fits="o", over="x", best="*", limit=":", axis="|")
"""For terminals that know no more than ASCII."""


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest trial that fits; ``None`` where none does."""
    fitting = [trial for trial in trials if trial.fits]
    return max(fitting, key=speed_of, default=None)


def speed_of(trial: Trial) -> float:
    """Throughput relative to none; samples/s where there is no reference."""
    return trial.relative_throughput or trial.measurement.samples_per_second or 0.0


def draw_plane(  # noqa: PLR0913  (what is drawn, and where)
    trials: Sequence[Trial],
    limit_bytes: int,
    *,
    width: int,
    height: int,
    marks: Marks,
    best: Trial | None = None,
) -> list[str]:
    """Return the trials by peak and throughput, up and to the left is better; nothing if there is too little to draw.

    Args:
        trials: What was measured.
        limit_bytes: The memory limit.
        width: Columns there are.
        height: Lines for the drawing, besides one for its scale.
        marks: What to draw with.
        best: The trial of the best config; the fastest that fits where none is given.
    """
    known = [(trial.measurement.peak_bytes or 0, speed_of(trial), trial) for trial in trials if _is_drawn(trial)]
    if len(known) < LEAST_TRIALS:
        return []
    peaks, speeds = [peak for peak, _, _ in known], [speed for _, speed, _ in known]
    low, high = min(*peaks, limit_bytes), max(*peaks, limit_bytes)
    slow, fast = min(speeds), max(speeds)
    is_relative = all(trial.relative_throughput for _, _, trial in known)
    labels = {0: _label(fast, is_relative=is_relative), height - 1: _label(slow, is_relative=is_relative)}
    indent = max(LABEL_WIDTH, *map(len, labels.values()))
    columns = width - indent - 1
    if columns < indent:
        return []
    grid = [[" "] * columns for _ in range(height)]
    at_limit = _place(limit_bytes, low, high, columns)
    for line in grid:
        line[at_limit] = marks.limit
    best = best or best_of(trials)
    # The best is drawn last: whatever shares its place gives way.
    for peak, speed, trial in sorted(known, key=lambda entry: (entry[2] is best, entry[2].fits)):
        mark = marks.best if trial is best else marks.fits if trial.fits else marks.over
        grid[height - 1 - _place(speed, slow, fast, height)][_place(peak, low, high, columns)] = mark
    drawn = [f"{labels.get(place, ''):>{indent}}{marks.axis}{''.join(line)}" for place, line in enumerate(grid)]
    return [*(line.rstrip() for line in drawn), f"{'':>{indent}} {_scale(low, high, limit_bytes, columns)}"]


def _scale(low: int, high: int, limit_bytes: int, columns: int) -> str:
    left, right, middle = format_bytes(low), format_bytes(high), f"limit {format_bytes(limit_bytes)}"
    between = f"{middle:^{max(columns - len(left) - len(right), 0)}}"
    return f"{left}{between}{right}"


def _label(speed: float, *, is_relative: bool) -> str:
    return format_relative(speed) if is_relative else f"{format_samples(speed)}/s"


def _place(value: float, low: float, high: float, count: int) -> int:
    return round((value - low) / (high - low) * (count - 1)) if high > low else count // 2


def _is_drawn(trial: Trial) -> bool:
    return trial.measurement.peak_bytes is not None and bool(trial.measurement.samples_per_second)
