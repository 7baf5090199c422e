"""Signals that wait."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Lets SIGINT and SIGTERM wait for the end of the block, which should be short.

    A ``Popen`` that is interrupted forgets the process it has just started, and nobody else knows of it. Blocking the
    signals would be handed down to that process; handlers are not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread alone
        return
    waiting: list[int] = []
    handlers = {number: signal.signal(number, lambda number, _: waiting.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived in waiting:
            os.kill(os.getpid(), arrived)
