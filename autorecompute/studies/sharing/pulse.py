"""Who of several workers is still alive: each one's beat in the storage, and what the others see of it."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from autorecompute.studies.sharing.opening import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

BEAT = "beat:"
"""Before the name of a session: the attribute of the study that its beats are counted in."""

PHASE = "phase:"
"""Before the name of a session: the attribute of the study that says what it is at."""

BEAT_SECONDS = 5.0
DEAD_SECONDS = 40.0
"""Whose beat did not change for so long is dead: longer than a connection that was lost for 20 s takes to come back,
with the beat that was due before it and the try that was under way at its end."""

BLIND_SECONDS = 15.0
"""Who did not look for so long, for want of a storage, begins to count anew: others could not beat either."""

RETRY_SECONDS = 1.0


class Pulse:
    """Beats for one session in a thread of its own, and watches the others.

    Clocks of hosts need not agree: what counts is how long, by the clock of the one who looks, a beat has not changed.

    Args:
        session: Whose pulse it is.
        write: Sets an attribute of the study.
        read: All of them.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        session: str,
        write: Callable[[str, Any], None],
        read: Callable[[], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session, self._write, self._read, self._clock = session, write, read, clock
        self._seen: dict[str, tuple[Any, float]] = {}
        self._alive: set[str] = set()
        self._looked = clock()
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Beats once, and goes on by itself."""
        self._write(f"{BEAT}{self._session}", 0)
        self._thread = threading.Thread(target=self._go_on, name="pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends; a beat that is stuck in a storage that is away is not waited for."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(RETRY_SECONDS)

    def observe(self, attributes: Mapping[str, Any]) -> None:
        """Takes note of all beats as they are now, and of those that never came of a session that is at something."""
        with self._lock:
            now = self._clock()
            if now - self._looked > BLIND_SECONDS:
                self._seen = {session: (count, now) for session, (count, _) in self._seen.items()}
            self._looked = now
            for session in {name.partition(":")[2] for name in attributes if name.startswith((BEAT, PHASE))}:
                count = attributes.get(f"{BEAT}{session}")
                known, since = self._seen.get(session, (None, now))
                if known not in {None, count}:
                    self._alive.add(session)
                self._seen[session] = (count, since if known == count else now)

    def has_beaten(self, session: str) -> bool:
        """Whether a beat of a session was seen to change; one that was not may have ended long ago."""
        with self._lock:
            return session in self._alive

    def is_dead(self, session: str) -> bool:
        """Whether a session has not beaten for too long; one that was never seen has just begun."""
        with self._lock:
            _, since = self._seen.get(session, (None, self._looked))
            return self._looked - since > DEAD_SECONDS

    def _go_on(self) -> None:
        wait_seconds = BEAT_SECONDS
        for count in itertools.count(1):
            if self._stopped.wait(wait_seconds):
                return
            wait_seconds = RETRY_SECONDS
            # Whoever works with the storage tells what is wrong with it.
            with suppress(*FAULTS):
                self._write(f"{BEAT}{self._session}", count)
                self.observe(self._read())
                wait_seconds = BEAT_SECONDS
