"""A training that is measured while it goes on: it is never started, restarted or ended from here."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

from autorecompute.measurement import Detection, GradientCheck, Measurement, Outcome
from autorecompute.trials.bench import Bench
from autorecompute.trials.endings import as_measurement, mark_busy_host
from autorecompute.waiting import OutOfTime
from autorecompute.worker.protocol import Beat, Check, Failed, Stay, decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autorecompute.plans import Config
    from autorecompute.trials.bench import Effort
    from autorecompute.trials.job import Job
    from autorecompute.worker.protocol import Message

CPU = "cpu"

SHARE = 0.05
"""Of the steps that a training is expected to take, so many are spent on trials at most."""

CHECK_STEPS = 1
"""What a comparison of gradients counts as."""

NOTHING_TO_COMPARE = GradientCheck(agrees=True, worst=0.0, steps=0)

STDERR = 2


class TrainingEndedError(Exception):
    """The training has ended, or measures nothing any more."""


class TrainingBench(Bench):
    """Measures configs in the steps of one training that goes on.

    A config is used in no step before its gradients were compared with those without recompute. That happens on a few
    samples of the next batch, and counts as one step.

    Args:
        job: What is trained.
        logs: Where other benches would keep output; nothing is written here.
        line: The socket to the training.
        steps: How many steps may be spent on trials.

    Attributes:
        spent_steps: How many have been, with their warm-up.
        spent_seconds: What they took.
        checks: The gradients of each config that was to be used, beside those without recompute.
    """

    def __init__(self, job: Job, logs: Path, line: socket.socket, steps: int) -> None:
        super().__init__(job, None, logs)
        self._line = Connection(line.detach())
        self._allowed, self._reserved = steps, 0
        self._has_ended = False
        self._known: set[Config] = set()
        self.checks: dict[Config, GradientCheck] = {}
        self.spent_steps, self.spent_seconds = 0, 0.0

    def keep_back(self, steps: int, trial: Effort) -> None:
        """Has :attr:`is_live` say no where a trial would leave fewer steps than these."""
        self._reserved = steps and steps + self._cost(None, trial)

    @property
    def is_live(self) -> bool:
        """Whether the training has steps left for another trial."""
        return not self._has_ended and self.left_steps >= self._reserved

    @property
    def left_steps(self) -> int:
        """How many steps may still be spent."""
        return self._allowed - self.spent_steps

    def close(self) -> None:
        """Nothing: a training is not ended from here."""

    def take_output(self) -> str:
        """Nothing: what a training prints is its user's."""
        return ""

    def detect(self) -> Detection:
        """What can be recomputed; waits until the script trains.

        Raises:
            TrainingEndedError: it never does.
        """
        if self._detection is None:
            message = self._receive()
            if not isinstance(message, Detection):
                self._end()
            self._detection = message
        return self._detection

    def measure(self, config: Config, effort: Effort) -> Measurement:
        """Measures a config in the next steps. Memory that runs out ends the training, and is a measurement.

        Raises:
            OutOfTime: there are no steps left for it.
            TrainingEndedError: the training has ended.
        """
        if self._cost(config, effort) > self.left_steps:
            raise OutOfTime
        check = self.check(config)
        if not check.agrees:
            return Measurement(outcome=_outcome_of(check), message=check.message)
        self._send(effort.order(config))
        message = self._receive()
        if isinstance(message, Failed) and message.outcome is Outcome.OOM:
            self._has_ended = True
            return as_measurement(message)
        if not isinstance(message, Measurement) or message.outcome is Outcome.DIVERGED:
            self._end()
        self._count(config, effort, message)
        return mark_busy_host(message)

    def check(self, config: Config) -> GradientCheck:
        """Compares the config's gradients with those without recompute, once for each config.

        Raises:
            TrainingEndedError: the training has ended.
        """
        if config.is_none:
            return NOTHING_TO_COMPARE
        if config not in self.checks:
            began = time.monotonic()
            self._send(Check(config=config))
            message = self._receive()
            if not isinstance(message, GradientCheck):
                self._end()
            self.spent_steps += CHECK_STEPS
            self.spent_seconds += time.monotonic() - began
            self.checks[config] = _explained(message)
        return self.checks[config]

    def stay(self, config: Config | None, message: str) -> None:
        """Ends the search: the training goes on with this config, or with what is on, and tells its user why.

        Raises:
            TrainingEndedError: it has ended.
        """
        self._send(Stay(config=config, message=message))

    def hang_up(self) -> None:
        """Tells the training that nobody is here any more."""
        self._line.close()

    def _cost(self, config: Config | None, effort: Effort) -> int:
        """The steps that a measurement takes: on a CPU one more, in which live tensors are counted."""
        observed = self.detect().device.kind == CPU
        if config in self._known and effort.warmup == 0:
            return effort.steps
        compared = 0 if config is None or config.is_none or config in self.checks else CHECK_STEPS
        return compared + max(effort.warmup, 1) + observed + effort.steps

    def _count(self, config: Config, effort: Effort, measurement: Measurement) -> None:
        self.spent_steps += self._cost(config, effort)  # its gradients were compared before
        self.spent_seconds += measurement.warmup_seconds + sum(measurement.step_seconds)
        self._known.add(config)

    def _send(self, message: Message) -> None:
        if self._has_ended:
            self._end()
        try:
            self._line.send_bytes(encode(message))
        except OSError:
            self._end()

    def _receive(self) -> Message:
        while True:
            try:
                message = decode(self._line.recv_bytes())
            except (EOFError, OSError, ValueError):
                self._end()
            if not isinstance(message, Beat):
                return message
            if message.expected is not None:
                self._allowed = min(self._allowed, int(SHARE * message.expected))

    def _end(self) -> NoReturn:
        self._has_ended = True
        raise TrainingEndedError


def _explained(check: GradientCheck) -> GradientCheck:
    if check.agrees:
        return check
    if not check.steps:
        return replace(check, message=f"a step with it raises: {check.message}")
    message = check.message or f"{check.parameter} is off by {check.worst:.1e} of its largest gradient"
    return replace(check, message=f"its gradients are wrong: {message}")


def _outcome_of(check: GradientCheck) -> Outcome:
    return Outcome.WRONG_GRADIENT if check.steps else Outcome.SCRIPT_ERROR


def start_beside(work: Callable[[socket.socket], None]) -> socket.socket:
    """Runs a function in a process of its own, which is nobody's child, and gives the other end of its line.

    It has no terminal and no output: Ctrl-C is the training's, and whoever reads the training's output waits for
    nothing else.
    """
    own, its = socket.socketpair()
    child = os.fork()
    if child:
        its.close()
        os.waitpid(child, 0)
        return own
    try:
        own.close()
        os.setsid()
        if not os.fork():
            _forget_terminal()
            work(its)
    finally:
        os._exit(0)


def _forget_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(STDERR + 1):
        os.dup2(null, number)
    os.close(null)
