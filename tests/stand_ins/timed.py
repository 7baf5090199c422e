"""The same bench under a clock that the test winds."""

import math

from autorecompute.plans import Config
from autorecompute.waiting import OutOfTime, left_seconds
from stand_ins.formula import FormulaBench


class Clock:
    """Moves only when it is told."""

    def __init__(self):
        self.now = 1000.0
        self.stop_at, self.stops = math.inf, 0
        """When the user loses patience, and how often that happened."""

    def monotonic(self):
        return self.now

    def advance(self, seconds):
        """Waits, until the user stops it or the deadline has passed."""
        until = self.now + seconds
        self.now = min(until, self.now + left_seconds(), self.stop_at)
        if self.now == self.stop_at:
            self.stop_at, self.stops = math.inf, self.stops + 1
            raise KeyboardInterrupt
        if self.now < until:
            raise OutOfTime


class TimedBench(FormulaBench):
    """A formula that takes time: a swap, every step, and a start of the script, which each confirmation needs too."""

    SWAP_SECONDS = 0.3

    def __init__(self, clock, detection=None, *, start_seconds=15.0, **formula):
        super().__init__(detection, **formula)
        self.clock, self.start_seconds = clock, start_seconds
        self.is_live = False

    def detect(self):
        if not self.is_live:
            self.clock.advance(self.start_seconds)
            self.is_live = True
        return super().detect()

    def measure(self, config, effort):
        self.detect()
        self.clock.advance(self.SWAP_SECONDS + self._steps(config, effort))
        return super().measure(config, effort)

    def check(self, config):
        """Swaps twice, and takes a few steps."""
        self.detect()
        self.clock.advance(2 * self.SWAP_SECONDS + 0.5)
        return super().check(config)

    def watch(self, environment, effort, batch):
        self.is_live = False
        self.clock.advance(self.start_seconds + self._steps(Config(), effort))
        return super().watch(environment, effort, batch)

    def _steps(self, config, effort):
        return (effort.warmup + effort.steps) * self.seconds(config, self.detection.batch)
