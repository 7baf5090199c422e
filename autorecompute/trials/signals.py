"""Signals that wait, that are not lost, and that a clock sends."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
SOON_SECONDS = 0.001
"""A timer of nought seconds would never ring."""

AGAIN_SECONDS = 1.0
"""An interruption that nobody took is raised again after so long."""


class OutOfTime(KeyboardInterrupt):
    """The time that the user allowed is over: an interruption by the clock."""


@contextmanager
def deferring_interrupts() -> Iterator[None]:
    """Lets SIGINT, SIGTERM and SIGALRM wait for the end of the block, which should be short.

    A ``Popen`` that is interrupted forgets the process it has just started, and nobody else knows of it. Blocking the
    signals would be handed down to that process; handlers are not.
    """
    if not _is_main_thread():
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


@contextmanager
def interruptible() -> Iterator[None]:
    """Lets SIGINT and SIGTERM raise ``KeyboardInterrupt`` in the block until somebody takes it, and never be lost.

    What a handler raises is swallowed where the interpreter happens to be in a finalizer or in a callback of a weak
    reference. So it is raised again every second, until :func:`ignoring_interrupts` says that it was seen. Signals that
    come in between, as from a second Ctrl-C, say nothing new.
    """
    if not _is_main_thread():
        yield
        return
    handlers = {number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    alarm = signal.getsignal(signal.SIGALRM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in {**handlers, signal.SIGALRM: alarm}.items():
            signal.signal(number, handler)


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ends what an interruption began in peace: no alarm rings any more, and signals in the block are ignored."""
    if not _is_main_thread():
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def alarmed_after(seconds: float) -> Iterator[None]:
    """Raises :class:`OutOfTime` in the block once so many seconds have passed, and every second from then on.

    The timer is the kernel's, and no clock that somebody sets. A block within another one rings first; what is left of
    the other's time goes on after it.
    """
    if not _is_main_thread():
        yield
        return
    handler, began = signal.signal(signal.SIGALRM, _end_of_time), time.monotonic()
    outer_seconds, _ = signal.setitimer(signal.ITIMER_REAL, max(seconds, SOON_SECONDS), AGAIN_SECONDS)
    try:
        yield
    finally:
        # Where the user stopped the block, the timer is no longer ours.
        if signal.getsignal(signal.SIGALRM) is _end_of_time:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            if outer_seconds:
                left_seconds = outer_seconds - (time.monotonic() - began)
                signal.setitimer(signal.ITIMER_REAL, max(left_seconds, SOON_SECONDS), AGAIN_SECONDS)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number != signal.SIGALRM:
        if signal.getsignal(signal.SIGALRM) is _interrupt:
            return  # the first of them is on its way
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS, AGAIN_SECONDS)
    raise KeyboardInterrupt


def _end_of_time(_number: int, _frame: FrameType | None) -> NoReturn:
    raise OutOfTime
