"""``python -m autorecompute.worker SCRIPT ARGS``: the user's script, followed and measured. Started by the tuner."""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import os
import signal
import sys
import termios
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.worker import hooks
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.channel import Channel
from autorecompute.worker.last_words import describe_failure
from autorecompute.worker.protocol import (
    MODULE_FLAG,
    SETTINGS_VARIABLE,
    STACK_SIGNAL,
    Ended,
    Hello,
    Message,
    Refused,
    Settings,
)
from autorecompute.worker.script import find_module, run_as_main, run_module_as_main

if TYPE_CHECKING:
    from autorecompute.backends.interface import WorkerBackend

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Runs the script under the controller's eyes and tells how it ended."""
    _die_with_parent()
    _give_up_terminal()
    faulthandler.register(STACK_SIGNAL)
    # The script and what it starts must not take themselves for workers.
    settings = codec.decode(os.environ.pop(SETTINGS_VARIABLE).encode(), Settings)
    # Every launcher of torch's kind tells its children who they are by these two.
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    channel = Channel(settings.address)
    channel.send(Hello(rank=rank, world_size=world_size, pid=os.getpid()))
    try:
        backend = registry.worker(settings.backend, Path(settings.address).parent, Path(sys.argv[1]))
        agent = Agent(channel, backend, settings, is_alone=world_size == 1)
        backend.install(agent, wrap=settings.wrap)
    except SetupError as error:
        channel.send(Refused(message=str(error)))
        return 1
    hooks.follow_steps(agent.on_step, agent.on_skip)
    hooks.follow_losses(agent.on_loss, agent.on_failure)
    hooks.follow_optimizers(agent.on_optimizer)
    agent.children.follow(settings.address, lambda: agent.has_trained)
    return _run(channel, backend, agent, sys.argv[1:])


def _run(channel: Channel, backend: WorkerBackend, agent: Agent, words: list[str]) -> int:
    def tell(end: Message) -> None:
        # A process that the script forked has a copy of the line, and its end is not the script's.
        if not agent.children.is_one:
            channel.send(end)

    try:
        if words[0] == MODULE_FLAG:
            agent.script = str(find_module(words[1]).origin)
            run_module_as_main(words[1], words[2:])
        else:
            agent.script = words[0]
            run_as_main(words[0], words[1:])
    except Abandon:
        return 1
    except SystemExit as request:
        code, text = _read(request)
        if text:
            sys.stderr.write(f"{text}\n")  # as Python would
        tell(Ended(steps=agent.steps, exit_code=code, advice=agent.advice, message=text))
        return code
    except BaseException as error:  # noqa: BLE001  (whatever ends the user's script is told to the controller)
        tell(describe_failure(error, backend, agent.script))
        return 1
    tell(Ended(steps=agent.steps, advice=agent.advice))
    return 0


def _read(request: SystemExit) -> tuple[int, str]:
    """The exit code that a script has asked for, and its words where it gave words instead."""
    if isinstance(request.code, int | None):
        return request.code or 0, ""
    return 1, str(request.code)


def _die_with_parent() -> None:
    """Asks Linux to end this process when the tuner dies, however it dies (see prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_up_terminal() -> None:
    """Leaves the terminal to the tuner: a script that asks there would be stopped, and finds none instead.

    One in the foreground, as for a debugger, keeps it.
    """
    try:
        terminal = os.open("/dev/tty", os.O_RDWR)
    except OSError:
        return
    if os.tcgetpgrp(terminal) != os.getpgrp():
        fcntl.ioctl(terminal, termios.TIOCNOTTY)
    os.close(terminal)


if __name__ == "__main__":
    sys.exit(main())
