"""Whose step ends a training step, where several optimizers take turns."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE = 3
"""After so many steps of other optimizers, the one that led has left the training, or never comes."""


class Turns:
    """Counts a round of all optimizers as one step, so that every measured step does the same work.

    One optimizer leads: a training step ends with its step, and holds what the others did since its last one. It is the
    first to step while every forward has had its backward. A generator's forward, for instance, waits until the
    discriminator has stepped, and no session can be rebuilt meanwhile.
    """

    def __init__(self) -> None:
        self._leader: Callable[[], Any] = lambda: None
        self._others = 0

    def end_with(self, optimizer: Any, *, is_forward_open: bool) -> bool:
        """Tell whether this optimizer's step ends a training step.

        Args:
            optimizer: The one that has stepped after at least one forward.
            is_forward_open: Whether a forward waits for its backward.
        """
        leader = self._leader()
        if optimizer is leader:
            self._others = 0
            return True
        self._others += 1
        if self._others <= PATIENCE and (leader is not None or is_forward_open):
            return False
        # A leader that the script has dropped must be free to go.
        self._leader, self._others = weakref.ref(optimizer), 0
        return True
