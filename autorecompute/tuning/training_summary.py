"""What the user of a training is told when its search has ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autorecompute.measurement import Trial
from autorecompute.result import Best
from autorecompute.tuning.answer.finalists import Finalist, lag
from autorecompute.units import format_bytes, format_count, format_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """A search in the steps of a training.

    Attributes:
        best: What stays on; ``None`` where nothing fits.
        limit_bytes: What the peak may reach.
        trials: What was tried.
        first: The trial of what the training began with.
        standings: Those that were compared in turns, the fastest first.
        refused: Configs whose gradients were wrong, each with the reason.
        spent_steps: Steps that went into trials.
        spent_seconds: What they took.
        notes: What else there is to say, in sentences without a full stop.
    """

    best: Best | None
    limit_bytes: int
    trials: Sequence[Trial]
    first: Trial | None
    standings: Sequence[Finalist]
    refused: Sequence[str]
    spent_steps: int
    spent_seconds: float
    notes: Sequence[str] = ()

    @property
    def sentence(self) -> str:
        """Return what is on from now on, beside what the training began with, and what the trials have cost."""
        return ". ".join([f"{self._describe_end()}{self._describe_refused()}", *self.notes])

    def _describe_end(self) -> str:
        if not self.trials:
            return "keeping the current config: none was measured"
        if self.best is None:
            tried, limit = format_count(len(self.trials), "config"), format_bytes(self.limit_bytes)
            return f"keeping the current config: {tried} tried, and none can be used at {limit}{self._describe_least()}"
        winner, spent = describe(self.best), f"The trials took {format_count(self.spent_steps, 'step')}"
        first = next((entry for entry in self.standings if entry.trial == self.first), None)
        if first is None or first is self.standings[0]:
            return f"{winner}; {self._describe_lead()}. {spent}"
        ratio = math.exp(lag(first, self.standings[0]))
        name, peak = name_of(first.trial), format_bytes(first.peak_bytes)
        began = f"{ratio:.2f}x of {name} ({peak}), which it began with"
        return f"{winner}, {began}. {self._describe_cost(step_seconds(first), ratio) or spent}"

    def _describe_least(self) -> str:
        peaks = [trial.measurement.peak_bytes for trial in self.trials if trial.measurement.peak_bytes is not None]
        return f"; the least peak was {format_bytes(min(peaks))}" if peaks else ""

    def _describe_lead(self) -> str:
        if sum(trial.measurement.outcome.is_measured for trial in self.trials) == 1:
            return "no other was measured"
        return "no other was faster" if self.standings else "no steps were left to compare it in turns with others"

    def _describe_cost(self, first_seconds: float, ratio: float) -> str:
        """After how many steps the training is where it would be if it had stayed with what it began with."""
        gained = first_seconds - first_seconds / ratio
        lost_seconds = self.spent_seconds - self.spent_steps * first_seconds
        if gained <= 0:
            return ""
        steps = self.spent_steps + math.ceil(max(lost_seconds, 0.0) / gained)
        return f"The trials are earned back after {format_count(steps, 'step')}"

    def _describe_refused(self) -> str:
        more = f", and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
        return f". Not used: {self.refused[0]}{more}" if self.refused else ""


def step_seconds(entry: Finalist) -> float:
    """Median wall time of a step, in the race where it ran in one."""
    raced = [seconds for run in entry.rounds for seconds in run.step_seconds]
    return statistics.median(raced or entry.trial.measurement.step_seconds)


def describe(best: Best) -> str:
    """Return the config with its peak and its speed."""
    peak, limit = format_bytes(best.peak_bytes), format_bytes(best.limit_bytes)
    return f"{name_of(best)}, peak {peak} of {limit}, {format_rate(best.samples_per_second)}"


def name_of(tried: Best | Trial) -> str:
    """Return the config as a sentence has it."""
    return "no recompute" if tried.config.is_none else tried.description
