"""Processes that the script starts by itself. Only its own is measured, so one of them that trains is told."""

from __future__ import annotations

import functools
import os
import sys
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TRAINS_ELSEWHERE = (
    "The script trains in a process that it starts itself (multiprocessing or os.fork), and only its own process is "
    "measured. Train in the script's own process and in the foreground, or have --launcher start the processes that "
    "train."
)
STARTED = (
    "It started other processes, and only its own is measured: if one of them is to train, train in the script's own "
    "process, or have --launcher start the processes that train."
)


class Children:
    """What is known of the processes that the script starts.

    Attributes:
        has_started: Whether it has started any.
        is_one: Whether this is one, with a copy of all that the script's process had in it.
    """

    def __init__(self) -> None:
        self.has_started = self.is_one = False

    def follow(self, address: str, has_trained: Callable[[], bool]) -> None:
        """Note each process that this one starts, and have it say so if it trains before this one does.

        Args:
            address: The controller's socket, which a process that was not forked calls by itself.
            has_trained: Tells whether this process has begun to train.
        """
        os.register_at_fork(after_in_parent=self.on_start, after_in_child=self.on_fork)
        start = BaseProcess.start

        @functools.wraps(start)
        def start_and_follow(process: Any) -> None:
            self.on_start()
            if not has_trained() and process._target is not None:  # noqa: SLF001  (its target has no other name)
                process._target = functools.partial(run_followed, address, process._target)  # noqa: SLF001
            start(process)

        BaseProcess.start = start_and_follow  # type: ignore[assignment,method-assign]

    def on_start(self) -> None:
        """Told that the script has started a process."""
        self.has_started = True

    def on_fork(self) -> None:
        """Told that this is a process that the script has forked."""
        self.is_one = True


def run_followed(address: str, target: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Run what a process was started for, and end it at its first optimizer step; tell the controller.

    A process that imports torch later than the script itself is not followed.
    """
    # Whatever the target needs has been imported with it; nothing else is to be imported for our sake.
    if "torch" in sys.modules:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(lambda *_: _tell(address))
    target(*args, **kwargs)


def _tell(address: str) -> None:
    from autorecompute.measurement import Outcome
    from autorecompute.worker.channel import Channel
    from autorecompute.worker.protocol import Failed

    Channel(address).send(Failed(outcome=Outcome.SCRIPT_ERROR, message=TRAINS_ELSEWHERE))
    raise SystemExit(1)
