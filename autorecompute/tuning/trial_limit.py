"""What trials are held against: the memory limit, less what a whole process needs beyond its live tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.tuning.answer.confirmation import TELLING
from autorecompute.tuning.explanations import WHOLE_PROCESS_SHARE
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.tuning.answer.confirmation import Confirmer, Rejections
    from autorecompute.tuning.context import TuningContext


class TrialLimit:
    """The limit for the peaks of trials.

    It begins with a guess: whole processes are taken to need as much more as the one without recompute held beyond its
    tensors. Once a whole process has run, its figure counts. Calling it with the trials so far gives bytes.

    Args:
        context: What the tuning works with.
        confirmer: Knows the whole processes that held the limit.
        rejections: Knows those that did not.
    """

    def __init__(self, context: TuningContext, confirmer: Confirmer, rejections: Rejections) -> None:
        self._context, self._confirmer, self._rejections = context, confirmer, rejections
        self._excess_bytes, self._guesses, self._has_told = 0, True, False

    def __call__(self, trials: Sequence[Trial]) -> int:
        """Return what is left for live tensors after these trials."""
        limit_bytes = self._context.problem.limit_bytes
        own_bytes = self._own_bytes(trials)
        if self._excess_bytes or own_bytes is None:
            return limit_bytes - self._excess_bytes
        seen_bytes = self._confirmer.excess_bytes(trials)
        if seen_bytes is not None:
            return limit_bytes - max(seen_bytes, 0)
        return limit_bytes - (own_bytes if self._guesses else 0)

    def is_guess(self, trials: Sequence[Trial]) -> bool:
        """Tell whether the limit rests on a guess, or on one whole process that held more than a guess would allow.

        Args:
            trials: What was measured.
        """
        if self._excess_bytes or self._own_bytes(trials) is None:
            return False
        limit_bytes = self._context.problem.limit_bytes
        seen_bytes = self._confirmer.excess_bytes(trials)
        if seen_bytes is None:
            return self(trials) < limit_bytes
        told = len(self._confirmer.configs) + len(self._rejections.known_excesses)
        return told < TELLING and seen_bytes > round(WHOLE_PROCESS_SHARE * limit_bytes)

    def stop_guessing(self) -> None:
        """Leave what whole processes that held the limit were seen to need, and nothing where none was."""
        self._guesses = False

    def learn(self) -> int:
        """Guesses no more, and takes what whole processes were seen to need where that was too much; gives it."""
        self._excess_bytes = self._rejections.excess_bytes
        self.stop_guessing()
        return self._excess_bytes

    def leanest_beyond(self, trials: Sequence[Trial]) -> Trial | None:
        """Return the trial of least peak where the guess leaves room for none: its whole process tells what is needed.

        Args:
            trials: What was measured.
        """
        is_known = self._confirmer.configs or len(self._rejections.known_excesses) >= TELLING
        left_bytes = self(trials)
        able = self._rejections.remaining(trials)
        if not self._guesses or is_known or any(trial.under(left_bytes).fits for trial in able):
            return None
        fitting = [trial for trial in (trial.under(self._context.problem.limit_bytes) for trial in able) if trial.fits]
        return min(fitting, key=lambda trial: trial.measurement.peak_bytes or 0, default=None)

    def _own_bytes(self, trials: Sequence[Trial]) -> int | None:
        """Return what the process without recompute held beyond its tensors; ``None`` where nothing tells."""
        # One that was lost, as some are in a study that is gone on with or shared, tells nothing, and the next one may.
        told = (trial for trial in trials if trial.config.is_none and trial.measurement.resident_bytes is not None)
        baseline = next(told, None)
        if baseline is None:
            return None
        # A trial's process has its free pages taken away. A training keeps them, about as much as was left here.
        own_bytes = baseline.measurement.untold_bytes + self._context.detection.left_bytes
        limit_bytes = self._context.problem.limit_bytes
        own_bytes = min(own_bytes, round(WHOLE_PROCESS_SHARE * limit_bytes))  # glibc may have kept far more by chance
        self._tell(baseline, own_bytes)
        return own_bytes

    def _tell(self, baseline: Trial, own_bytes: int) -> None:
        if not self._has_told and not baseline.under(self._context.problem.limit_bytes - own_bytes).fits:
            room = format_bytes(own_bytes)
            self._context.note(f"leaving {room} of the limit for what a process holds beyond its tensors")
        self._has_told = True
