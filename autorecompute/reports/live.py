"""The progress of a tuning while it runs."""

from __future__ import annotations

import math
import statistics
import time
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from autorecompute.figures import format_relative, place_measured
from autorecompute.measurement import Outcome
from autorecompute.reports.console import shorten
from autorecompute.units import (
    describe_software,
    format_bytes,
    format_count,
    format_rate,
    format_samples,
    format_seconds,
    printable,
)
from autorecompute.waiting import clock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from autorecompute.measurement import Measurement, Prediction, Trial
    from autorecompute.result import Best
    from autorecompute.training_job import Detection


LABEL_WIDTH = 7
LEAST_TRIALS = 2

FITS, OVER, STAR, LIMIT, AXIS = "●○★┊│"
TYPED = str.maketrans(FITS + OVER + STAR + LIMIT + AXIS, "ox*:|")  # for terminals that know no more than ASCII


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the fastest trial that fits; ``None`` where none does."""
    fitting = [trial for trial in trials if trial.fits]
    # Without a reference there is no relative throughput.
    return max(fitting, key=lambda trial: trial.relative_throughput or trial.samples_per_second or 0.0, default=None)


def draw_plane(
    trials: Sequence[Trial], limit_bytes: int, *, width: int, height: int, best: Trial | None = None
) -> list[str]:
    """Return the trials by peak and throughput, up and to the left is better; nothing if there is too little to draw.

    It has so many lines, besides one for its scale. The best is the fastest that fits, where no other one is given.
    """
    known, is_relative = place_measured(trials)
    if len(known) < LEAST_TRIALS:
        return []
    peaks, speeds = [peak for peak, _, _ in known], [speed for _, speed, _ in known]
    low, high = min(*peaks, limit_bytes), max(*peaks, limit_bytes)
    slow, fast = min(speeds), max(speeds)
    labels = {0: _label(fast, is_relative=is_relative), height - 1: _label(slow, is_relative=is_relative)}
    indent = max(LABEL_WIDTH, *map(len, labels.values()))
    columns = width - indent - 1
    if columns < indent:
        return []
    grid = [[" "] * columns for _ in range(height)]
    at_limit = _place(limit_bytes, low, high, columns)
    for line in grid:
        line[at_limit] = LIMIT
    best = best or best_of(trials)
    # The best is drawn last: whatever shares its place gives way.
    for peak, speed, trial in sorted(known, key=lambda entry: (entry[2] is best, entry[2].fits)):
        mark = STAR if trial is best else FITS if trial.fits else OVER
        grid[height - 1 - _place(speed, slow, fast, height)][_place(peak, low, high, columns)] = mark
    drawn = [f"{labels.get(place, ''):>{indent}}{AXIS}{''.join(line)}" for place, line in enumerate(grid)]
    left, right, middle = format_bytes(low), format_bytes(high), f"limit {format_bytes(limit_bytes)}"
    between = f"{middle:^{max(columns - len(left) - len(right), 0)}}"
    return [*(line.rstrip() for line in drawn), f"{'':>{indent}} {left}{between}{right}"]


def _label(speed: float, *, is_relative: bool) -> str:
    return format_relative(speed) if is_relative else f"{format_samples(speed)}/s"


def _place(value: float, low: float, high: float, count: int) -> int:
    return round((value - low) / (high - low) * (count - 1)) if high > low else count // 2


DESCRIPTION_WIDTH = 52
MOST_COLUMNS = 72
PLANE_LINES = 6
LEAST_LINES = 18  # on a lower terminal the drawing would push the lines away that it stands below
REFRESHES_PER_SECOND = 2
_COLORS = {Outcome.OK: "green", Outcome.OVER_LIMIT: "yellow"}


class LiveView:
    """Tells a person what a tuning does, as it does it; a context manager that leaves a clean terminal.

    Args:
        console: The terminal; stderr where none is given.
        has_bar: True if anything may move on the terminal.
        is_shared: True if other workers measure as well.
    """

    def __init__(self, console: Console | None = None, *, has_bar: bool = True, is_shared: bool = False) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._is_shared = is_shared
        self._began = time.monotonic()
        self._trials: list[Trial] = []
        self._limit_bytes, self._budget = 0, 0
        self._deadline_seconds = math.inf
        self._doing = "starting the script"
        self._expecting = ""
        self._leader: tuple[Trial, float | None] | None = None
        self._usable = ""
        self._trial_began: float | None = None
        self._durations: list[float] = []
        self._searches = True
        self._live: Live | None = None
        if has_bar and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                transient=True,
                refresh_per_second=REFRESHES_PER_SECOND,
                redirect_stdout=False,
                redirect_stderr=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def detected(
        self,
        detection: Detection,
        limit_bytes: int,
        *,
        known_trials: Sequence[Trial],
        budget: int,
        deadline_seconds: float,
    ) -> None:
        """Tell what the script trains and how far the study has come."""
        self._say(
            f"{format_count(len(detection.plans), 'plan')} at batch {detection.batch} on "
            f"{escape(detection.device.name)}, limit {format_bytes(limit_bytes)}; "
            f"{escape(describe_software(detection.versions))}"
        )
        if known_trials:
            whose = "of all workers" if self._is_shared else "of an earlier session"
            self._say(f"after {format_count(len(known_trials), 'trial')} {whose}")
        self._trials, self._limit_bytes, self._budget = list(known_trials), limit_bytes, budget
        self._deadline_seconds, self._doing = deadline_seconds, "searching"

    def trial_begins(self, number: int, description: str, reason: str, prediction: Prediction | None = None) -> None:
        """Show what is being measured, why, and what is expected of it."""
        self._trial_began, self._leader, self._searches = time.monotonic(), None, True
        self._doing = f"trial {number}: {description} ({reason})"
        self._expecting = _describe(prediction) if prediction is not None else ""

    def trial_ended(self, trial: Trial) -> None:
        """Print one line: what was measured and what came of it."""
        if self._trial_began is not None:
            self._durations.append(time.monotonic() - self._trial_began)
            self._trial_began = None  # the next one to end may be another worker's
        self._trials.append(trial)
        self._doing, self._expecting, self._searches = "searching", "", True
        measurement = trial.measurement
        compiled = f"compiled in {format_seconds(measurement.compile_seconds)}" if measurement.compile_seconds else ""
        remarks = (measurement.message, compiled, *measurement.marks)
        color = _COLORS.get(measurement.outcome, "red")
        self._say(
            f"{trial.number:>3}  {escape(shorten(trial.description, DESCRIPTION_WIDTH)):<{DESCRIPTION_WIDTH}} "
            f"{format_bytes(measurement.peak_bytes):>9} {_speed(measurement, trial.relative_throughput):>6}  "
            f"[{color}]{measurement.outcome}[/] {escape('; '.join(filter(None, remarks)))}".rstrip()
        )

    def leads(self, trial: Trial, relative_throughput: float | None) -> None:
        """Show as the best what is about to be confirmed, whatever single trials say, until the search goes on."""
        self._leader = (trial, relative_throughput)

    def may_be_used(self, best: Best) -> None:
        """Show the answer that there is from now on."""
        speed = f"{format_relative(best.relative_throughput)}, " if best.relative_throughput is not None else ""
        self._usable = f"{format_bytes(best.peak_bytes)}, {speed}confirmed: {best.description}"
        self._say(escape(f"may be used from now on: {self._usable}"))

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._say(escape(text))
        self._doing, self._expecting, self._searches = text, "", False

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]\\[{format_seconds(time.monotonic() - self._began):>11}][/] {printable(text)}")

    def _render(self) -> Group:
        """Render the state in lines that are cut at the terminal's current edge."""
        width = min(self._console.width - 1, MOST_COLUMNS)
        plane = []
        if self._console.height >= LEAST_LINES:
            best = self._leader[0] if self._leader is not None else None
            plane = draw_plane(self._trials, self._limit_bytes, width=width, height=PLANE_LINES, best=best)
        if self._console.options.ascii_only:
            plane = [line.translate(TYPED) for line in plane]
        usable = f"yours {self._usable}" if self._usable else ""
        lines = [*plane, self._best(), usable, f"now   {self._doing}", self._expecting, self._time()]
        shown = (printable(line) for line in lines if line)
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in shown))

    def _best(self) -> str:
        best = self._leader[0] if self._leader is not None else best_of(self._trials)
        if best is None:
            return f"best  none of {format_count(len(self._trials), 'trial')} fits yet" if self._trials else ""
        relative = best.relative_throughput if self._leader is None else self._leader[1]
        speed = _speed(best.measurement, relative)
        return f"best  {format_bytes(best.measurement.peak_bytes)}, {speed}: {best.description}"

    def _time(self) -> str:
        parts = [f"time  {format_seconds(time.monotonic() - self._began)} so far"]
        left = max(self._budget - len(self._trials), 0)
        if self._searches and self._durations and left:
            seconds = left * statistics.median(self._durations)
            parts.append(f"{format_count(left, 'trial')} left at most, about {format_seconds(seconds)}")
        if math.isfinite(self._deadline_seconds):
            parts.append(f"ends within {format_seconds(max(self._deadline_seconds - clock(), 0))}")
        return "; ".join(parts)


def _speed(measurement: Measurement, relative_throughput: float | None) -> str:
    """Return it as a share of no recompute; in samples/s where that did not train, as is usual on a card."""
    if relative_throughput is not None:
        return format_relative(relative_throughput)
    return format_rate(measurement.samples_per_second)


def _describe(prediction: Prediction) -> str:
    peaks = f"{format_bytes(prediction.peak_low)} to {format_bytes(prediction.peak_high)}"
    speed = "" if prediction.step is None else f" {format_relative(1 / prediction.step)},"
    return f"      expected: {peaks},{speed} {prediction.fits:.0%} to fit"
