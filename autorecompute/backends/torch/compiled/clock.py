"""How long the compiler takes, as it says itself."""

from __future__ import annotations

import time

from torch._dynamo.callback import callback_handler


class CompileClock:
    """Adds up the time in which the compiler is at work."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began: float | None = None

    def start(self) -> None:
        """Listen from now on."""
        if self._begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._begin)
            callback_handler.register_end_callback(self._end)

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _begin(self, *_event: object) -> None:
        self._began = time.perf_counter()

    def _end(self, *_event: object) -> None:
        if self._began is not None:
            self._seconds += time.perf_counter() - self._began
            self._began = None


CLOCK = CompileClock()
"""That of this process: there is one compiler in it."""
