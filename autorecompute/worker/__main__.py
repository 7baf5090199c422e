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

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.worker import hooks, protocol, script
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.script import STARTED, describe_failure, follow_children, run_words, script_file

PR_SET_PDEATHSIG = 1


def main() -> int:
    """Run the script under the controller's eyes and tell how it ended."""
    _die_with_parent()
    _give_up_terminal()
    faulthandler.register(protocol.STACK_SIGNAL)
    # The script and what it starts must not take themselves for workers.
    settings = codec.decode(os.environ.pop(protocol.SETTINGS_VARIABLE).encode(), protocol.Settings)
    # Every launcher of torch's kind tells its children who they are by these two.
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    channel = protocol.Channel(settings.address)
    channel.send(protocol.Hello(rank=rank, world_size=world_size, pid=os.getpid()))
    return _Worker(channel, settings, sys.argv[1:], is_alone=world_size == 1).run()


class _Worker:
    """The user's script, followed from the import of what it trains with."""

    def __init__(
        self, channel: protocol.Channel, settings: protocol.Settings, words: list[str], *, is_alone: bool
    ) -> None:
        self._channel, self._settings, self._words, self._is_alone = channel, settings, words, is_alone
        self._pid, self._script = os.getpid(), ""
        self._has_children = follow_children(settings.address, self._has_trained)
        self._agent: Agent | None = None
        self._has_begun = False

    def run(self) -> int:
        try:
            end = self._run_script()
            if end is None or isinstance(end, SystemExit):
                return self._tell_end(end)
            self._tell(describe_failure(end, self._follow().backend, self._script))
        except Abandon:
            pass
        return 1

    def _run_script(self) -> BaseException | None:
        """Run the script and return the error that ended it; ``None`` where it came to its own end."""
        try:
            if self._settings.fakes:
                self._begin()  # which tells the script its rank
            else:
                # Not yet: a script may set variables that are read when torch is imported.
                registry.call_when_imported(self._settings.backend, self._begin)
            self._script = script_file(self._words)
            if self._agent is not None:
                self._agent.script = self._script
            run_words(self._words)
        except Abandon:
            raise
        except BaseException as error:  # noqa: BLE001  (whatever ends the user's script is told to the controller)
            return error
        return None

    def _tell_end(self, request: SystemExit | None) -> int:
        code, text = _read(request)
        if self._agent is None:
            why = script.PASSED_BY if "torch" in sys.modules else script.NO_TORCH
            steps, advice = 0, f"{why} {STARTED}" if self._has_children() else why
        else:
            steps, advice = self._agent.steps, self._agent.advice
        self._tell(protocol.Ended(steps=steps, exit_code=code, advice=advice, message=text))
        return code

    def _begin(self) -> None:
        if not self._has_begun:
            self._follow()

    def _follow(self) -> Agent:
        if self._agent is not None:
            return self._agent
        self._has_begun = True  # the backend imports what is waited for
        try:
            backend = registry.worker(self._settings.backend, Path(self._settings.address).parent)
            agent = Agent(self._channel, backend, self._settings, is_alone=self._is_alone)
            # A script may fork before it imports torch, and this is run in the fork.
            agent.process, agent.has_children, agent.script = self._pid, self._has_children, self._script
            backend.install(agent)
        except SetupError as error:
            self._channel.send(protocol.Failed(outcome=Outcome.SCRIPT_ERROR, message=str(error), is_setup=True))
            raise Abandon(str(error)) from error
        hooks.follow_steps(agent.on_step, agent.on_skip, agent.on_failure)
        hooks.follow_losses(agent.on_loss, agent.on_failure)
        hooks.follow_optimizers(agent.on_optimizer)
        self._agent = agent
        return agent

    def _has_trained(self) -> bool:
        return self._agent is not None and self._agent.has_trained

    def _tell(self, end: protocol.Message) -> None:
        # A process that the script forked has a copy of the line, and its end is not the script's.
        if os.getpid() == self._pid:
            self._channel.send(end)


def _read(request: SystemExit | None) -> tuple[int, str]:
    # A script may give words to print instead of a code.
    code = request.code if request is not None else None
    if isinstance(code, int | None):
        return code or 0, ""
    sys.stderr.write(f"{code}\n")  # as Python does
    return 1, str(code)


def _die_with_parent() -> None:
    """Ask Linux to end this process when the tuner dies, however it dies (see prctl(2))."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _give_up_terminal() -> None:
    """Leave the terminal to the tuner: a script that asks there would be stopped, and finds none instead.

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
