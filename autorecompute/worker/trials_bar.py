"""A progress bar of the steps that trials may take, on a terminal."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any


class TrialsBar:
    """A bar of ``tqdm``, where that is installed and stderr is a terminal; elsewhere nothing.

    Args:
        steps: How many steps trials may take; 0 shows none.
    """

    def __init__(self, steps: int) -> None:
        self._bar: Any = None
        # A bar is nothing that a search could fail for.
        with contextlib.suppress(Exception):
            if steps:
                make = importlib.import_module("tqdm").tqdm
                # Only on a terminal, and gone when the search is over.
                self._bar = make(total=steps, desc="autorecompute", unit="step", leave=False, disable=None)

    def advance(self) -> None:
        """Count a step that has ended, in a trial or between two."""
        if self._bar is not None:
            with contextlib.suppress(Exception):
                self._bar.update()

    def close(self) -> None:
        """End the bar: the search is over."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(Exception):
                bar.close()
