"""The time that a tuning is given: what is left, and what has to be kept back to end with a confirmed answer."""

from __future__ import annotations

import enum
import math
import statistics
import time
from collections import deque
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from autorecompute.waiting import clock, ending_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


MEMORY = 5
"""So many of the last durations of a task are remembered: what was long once, on a cold disk, is not for ever."""

LEEWAY = 0.05
"""Every wait ends so much beyond the timeout, as a share of it. The command may take 10 % more than its timeout: the
other half is for ending the workers and for the answer."""

ROUNDS_OF_A_TRIAL = 2
"""A round of a race has four steps, a trial seven, and four of its reference before most of them."""


class Task(enum.Enum):
    """Tasks that take time in a tuning."""

    START = "start"
    """Of the script, up to its first training session."""
    TRIAL = "trial"
    """A config's, and the reference beside it."""
    ROUND = "round"
    """One config in one round of a race."""
    CHECK = "check"
    """Of a config's gradients."""
    CONFIRMATION = "confirmation"
    """In a fresh process; so is the rival batch's."""


class Budget:
    """Time, counted from the start of the command.

    Nothing is promised of a task that was not seen yet: it is expected to take what its parts took.

    Args:
        timeout_seconds: Time that the user allows; ``None`` for no end.
        began_seconds: Start of the command, a time of :func:`autorecompute.waiting.clock`.
    """

    def __init__(self, timeout_seconds: float | None, began_seconds: float) -> None:
        self._timeout_seconds = math.inf if timeout_seconds is None else timeout_seconds
        self._began_seconds = began_seconds
        self._seen: dict[Task, deque[float]] = {task: deque(maxlen=MEMORY) for task in Task}

    @property
    def deadline_seconds(self) -> float:
        """Time of that clock at which the command should end; infinite without a timeout."""
        return self._began_seconds + self._timeout_seconds

    @property
    def left_seconds(self) -> float:
        """Return the seconds left, below 0 where the time is over."""
        return self.deadline_seconds - clock()

    @contextmanager
    def timing(self, task: Task) -> Iterator[None]:
        """Learn how long a task takes from the block, unless that fails."""
        began = time.monotonic()
        yield
        self.learn(task, time.monotonic() - began)

    def learn(self, task: Task, seconds: float) -> None:
        """Learn how long a task took."""
        self._seen[task].append(seconds)

    def expect(self, *tasks: Task) -> float:
        """Seconds that these tasks should take together, each as long as it took at most of late."""
        return sum(max(self._seen[task], default=None) or self._guess(task) for task in tasks)

    def allows(self, *tasks: Task, reserve_seconds: float = 0.0) -> bool:
        """Tell whether these tasks should end in time, with so many seconds left after them."""
        return self.expect(*tasks) + reserve_seconds <= self.left_seconds

    def allows_late(self, *tasks: Task) -> bool:
        """Tell whether these tasks should end before every wait is ended, if not in time."""
        return self.expect(*tasks) <= self.left_seconds + self._leeway_seconds

    def reserve_seconds(self, needed: Sequence[Task], wished: Sequence[Task]) -> float:
        """Return the time to keep for the end: all that is needed, and half the time at most of what is wished."""
        needed_seconds = self.expect(*needed)
        spare_seconds = self._timeout_seconds - self.expect(Task.START) - needed_seconds
        return needed_seconds + min(self.expect(*wished), max(spare_seconds / 2, 0.0))

    def enforced(self) -> AbstractContextManager[None]:
        """End every wait in the block a little after the time is over: it raises ``OutOfTime``."""
        return ending_at(self.deadline_seconds + self._leeway_seconds)

    @property
    def _leeway_seconds(self) -> float:
        return LEEWAY * self._timeout_seconds

    def _guess(self, task: Task) -> float:
        trial_seconds = statistics.median(self._seen[Task.TRIAL] or [0.0])
        match task:
            case Task.CONFIRMATION:
                return self.expect(Task.START) + trial_seconds
            case Task.ROUND:
                return trial_seconds / ROUNDS_OF_A_TRIAL
            case Task.CHECK:
                return trial_seconds
            case Task.START | Task.TRIAL:
                return 0.0
