"""Waits that end when the time is over, and when the user stops the command.

Code that waits asks here whether it may go on. So both are raised at known places only: what was begun between two
waits, such as a trial that is being written, is finished first.
"""

from __future__ import annotations

import math
import signal
import time
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

_deadline: ContextVar[float] = ContextVar("deadline", default=math.inf)


_stood = {"seconds": 0.0, "since": math.inf}  # how long the clock has stood still, and since when it does


class OutOfTime(Exception):  # noqa: N818  (that the time is over is no error)
    """The time that the user allowed is over."""


_interruption = {"has_come": False, "is_raised": False}  # SIGINT or SIGTERM came, and was raised


def _note(_number: int, _frame: FrameType | None) -> None:
    _interruption["has_come"] = True


def _raise_once() -> None:
    """Raise ``KeyboardInterrupt`` at the first call after a signal. Further signals say nothing new."""
    if _interruption["has_come"] and not _interruption["is_raised"]:
        _interruption["is_raised"] = True
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGINT and SIGTERM raise ``KeyboardInterrupt``, once, at the next wait in the block or at its end."""
    handlers = {number: signal.signal(number, _note) for number in INTERRUPTS}
    try:
        yield
        _raise_once()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        _interruption.update(has_come=False, is_raised=False)


def clock() -> float:
    """Return the seconds of a clock that deadlines are times of: the monotonic one, less what was :func:`standing`."""
    return min(time.monotonic(), _stood["since"]) - _stood["seconds"]


@contextmanager
def standing() -> Iterator[None]:
    """Let the clock stand still in the block, and no deadline end it; one thread at a time."""
    began = _stood["since"] = time.monotonic()
    token = _deadline.set(math.inf)
    try:
        yield
    finally:
        _deadline.reset(token)
        _stood.update(seconds=_stood["seconds"] + time.monotonic() - began, since=math.inf)


@contextmanager
def ending_at(deadline_seconds: float) -> Iterator[None]:
    """End each wait of this thread in the block at this time of :func:`clock`; an earlier deadline stays."""
    token = _deadline.set(min(deadline_seconds, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def left_seconds() -> float:
    """Return the seconds that a wait may last: infinite without a deadline, 0 when the time is over."""
    return max(_deadline.get() - clock(), 0.0)


def raise_if_over() -> None:
    """Raise ``KeyboardInterrupt`` if the user stopped the command, and ``OutOfTime`` if its time is over."""
    _raise_once()
    if not left_seconds():
        raise OutOfTime


def pause(seconds: float) -> None:
    """Sleep, until the deadline at most; raise what :func:`raise_if_over` raises."""
    raise_if_over()
    time.sleep(min(seconds, left_seconds()))
    raise_if_over()
