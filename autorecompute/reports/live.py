"""The live view of a tuning, on stderr: a line a trial, and a progress bar where there is a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from autorecompute.measurement import Outcome
from autorecompute.reports.words import format_relative, shorten
from autorecompute.units import format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from autorecompute.measurement import Detection, Trial

DESCRIPTION_WIDTH = 52
_COLORS = {Outcome.OK: "green", Outcome.OVER_LIMIT: "yellow"}


class LiveView:
    """Tells a person what a tuning does, as it does it; a context manager that leaves a clean terminal.

    Args:
        console: Where to; stderr where none is given.
        has_bar: Whether a progress bar may move over the terminal.
    """

    def __init__(self, console: Console | None = None, *, has_bar: bool = True) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not (has_bar and self._console.is_terminal),
        )
        self._task = self._bar.add_task("starting the script", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def detected(self, detection: Detection, limit_bytes: int, *, known_trials: int, budget: int) -> None:
        """Tells what the script trains and how far an earlier session came."""
        versions = detection.versions
        self._say(
            f"{format_count(len(detection.plans), 'plan')} at batch {detection.batch} on "
            f"{escape(detection.device.name)}, limit {format_bytes(limit_bytes)}; torch {versions['torch']}, "
            f"ONNX Runtime {versions['onnxruntime']}"
        )
        if known_trials:
            self._say(f"after {format_count(known_trials, 'trial')} of an earlier session")
        self._bar.update(self._task, total=budget, completed=known_trials, description="searching")

    def trial_begins(self, number: int, description: str, reason: str) -> None:
        """Shows what is being measured."""
        self._bar.update(self._task, completed=number, description=escape(f"{shorten(description, 40)} ({reason})"))

    def trial_ended(self, trial: Trial) -> None:
        """One line: what was measured and what came of it."""
        measurement = trial.measurement
        remarks = (measurement.message, *measurement.marks)
        color = _COLORS.get(measurement.outcome, "red")
        self._say(
            f"{trial.number:>3}  {escape(shorten(trial.description, DESCRIPTION_WIDTH)):<{DESCRIPTION_WIDTH}} "
            f"{format_bytes(measurement.peak_bytes):>9} {format_relative(trial.relative_throughput):>6}  "
            f"[{color}]{measurement.outcome}[/] {escape('; '.join(filter(None, remarks)))}".rstrip()
        )
        self._bar.update(self._task, completed=trial.number + 1)

    def note(self, text: str) -> None:
        """A line of its own."""
        self._say(escape(text))
        self._bar.update(self._task, description=escape(shorten(text, 60)))

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]\\[{format_seconds(time.monotonic() - self._began):>11}][/] {text}")
