"""Notes on the other workers of a shared study."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autorecompute.studies.sharing.pulse import DEAD_SECONDS
from autorecompute.units import format_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.studies.sharing import SharedStudy

QUIET_SECONDS = 5.0
"""A wait that is over before needs no word."""


class Peers:
    """Reports on the other workers, each fact once.

    Args:
        shared: The study.
        note: Takes a line.
    """

    def __init__(self, shared: SharedStudy, note: Callable[[str], None]) -> None:
        self._shared, self._note = shared, note
        self._awaited: frozenset[int] = frozenset()
        self._since_seconds = time.monotonic()
        self._is_told = False

    def note_others(self) -> None:
        """Who else is there: those that were seen to be alive apart from those that may have gone without a word."""
        seen = self._shared.seen
        if seen:
            self._note(f"shares the study with {format_count(seen, 'other worker')}")
        if unseen := len(self._shared.others) - seen:
            self._note(f"{format_count(unseen, 'other worker')} may be there or gone: no sign of life was seen yet")

    def note_awaited(self) -> None:
        """Which trials are waited for, where that takes a while."""
        now, running = time.monotonic(), frozenset(self._shared.view.running)
        if running != self._awaited:
            self._awaited, self._since_seconds, self._is_told = running, now, False
        if running and not self._is_told and now - self._since_seconds > QUIET_SECONDS:
            self._is_told = True
            trials = " and ".join(f"trial {number}" for number in sorted(running))
            self._note(
                f"waiting for {trials} of other workers: ended by them, or given back {DEAD_SECONDS:.0f} s after the "
                "last sign of life"
            )
