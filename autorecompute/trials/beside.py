"""A training that is measured while it goes on: it is never started, restarted or ended from here."""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

from autorecompute.errors import ScriptError
from autorecompute.measurement import UNCOMPARED, GradientCheck, Measurement, Outcome
from autorecompute.training_job import Detection
from autorecompute.trials.bench import CPU, Bench, as_measurement, mark_busy_host
from autorecompute.waiting import OutOfTime
from autorecompute.worker.protocol import Beat, Check, Failed, KeepConfig, decode, encode, explain_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autorecompute.plans import Config, Lengths
    from autorecompute.trials.job import Effort, Job
    from autorecompute.worker.protocol import Message

SHARE = 0.05  # of the steps that a training is expected to take, spent on trials at most
TRIALS = 3  # a trial is cut short to leave steps for so many, however few there are
FEWEST_TIMED = 2  # steps of a trial
FEWEST_RACED = 2  # nothing is kept back before so many configs were measured
CHECK_STEPS = 1  # as which a comparison of gradients counts


class TrainingEndedError(Exception):
    """The training has ended, or measures nothing any more."""


class TrainingBench(Bench):
    """Measures configs in the steps of one training that goes on; ``TrainingEndedError`` is raised where it does not.

    A config is used in no step before its gradients were compared with those without recompute. That happens on a few
    samples of the next batch, and counts as one step; so does a whole step with the config on fake tensors. Where the
    job tells the longest sample, steps of that length, and of shorter ones, are measured beside the training.

    Args:
        job: The job that is trained.
        logs: Folder for the output of other benches; this one writes nothing.
        line: The socket to the training.
        steps: The most steps that may be spent on trials.

    Attributes:
        spent_seconds: Time of the trials, and of the steps that passed between them.
        set_aside: Share of the steps that is left for later.
        checks: The gradients of each config that was to be used, beside those without recompute.
    """

    def __init__(self, job: Job, logs: Path, line: socket.socket, steps: int) -> None:
        super().__init__(job, None, logs)
        self._line = Connection(line.detach())
        self._allowed, self._reserve = steps, (0, 0.0)
        self._next: Effort | None = None
        self._has_ended = False
        self._known: set[Config] = set()
        self.checks: dict[Config, GradientCheck] = {}
        self._trained_steps, self._step_seconds, self.spent_seconds = 0, 0.0, 0.0
        self._beside_steps, self.set_aside = 0.0, 0.0
        self._length: int | None = None

    def keep_back(self, steps: int, share: float, trial: Effort) -> None:
        """Have :attr:`is_live` say no where a trial would leave too few steps to compare what was measured in turns.

        From the third trial on so many are kept back, but no more than this share of all steps.
        """
        self._reserve, self._next = (steps, share), trial

    def release(self) -> None:
        """Keep nothing back any more."""
        self._next = None

    @property
    def is_live(self) -> bool:
        """Tell whether the training has steps left for another trial."""
        return not self._has_ended and self.left_steps >= self._needed()

    def _needed(self) -> int:
        if self._next is None:
            return 0
        steps, share = self._reserve
        kept = min(steps, int(share * self._allowed)) if len(self._known) >= FEWEST_RACED else 0
        return kept + CHECK_STEPS + self._cost(None, self._fitted(self._next))

    @property
    def spent_steps(self) -> int:
        """Return the steps since the training began, each with a trial's config on, and those of comparisons.

        Where trials run beside the training, these count, a short one for less.
        """
        trained = self._trained_steps if self._job.longest is None else math.ceil(self._beside_steps)
        return trained + CHECK_STEPS * len(self.checks)

    @property
    def left_steps(self) -> int:
        """Return the number of steps that may still be spent."""
        return int(self._allowed * (1 - self.set_aside)) - self.spent_steps

    def close(self) -> None:
        """Do nothing: a training is not ended from here."""

    def take_output(self) -> str:
        """Return nothing: what a training prints is its user's."""
        return ""

    def detect(self) -> Detection:
        """Wait until the script trains, and return the detection."""
        if self._detection is None:
            message = self._receive()
            if not isinstance(message, Detection):
                self._end()
            self._detection = message
        return self._detection

    def measure(self, config: Config, effort: Effort) -> Measurement:
        """Measure a config in the next steps. Memory that runs out is a measurement, and may end the training.

        Where few steps may be spent, fewer are timed than the effort says.

        Raises:
            OutOfTime: there are no steps left for it.
        """
        effort = self._fitted(effort)
        if self._job.longest is not None:
            self._length = effort.length or self._length or self._job.longest
        if self._cost(config, effort) * self._share > self.left_steps:
            raise OutOfTime
        check = self.check(config)
        if not check.agrees:
            outcome = Outcome.WRONG_GRADIENT if check.steps else Outcome.SCRIPT_ERROR
            return Measurement(outcome=outcome, message=check.message)
        before, cost = self._trained_steps, self._cost(config, effort)
        self._beside_steps += cost * self._share
        self._send(effort.order(config))
        message = self._receive()
        if isinstance(message, Failed) and message.outcome is Outcome.OOM:
            self._has_ended = True
            return as_measurement(message)
        if not isinstance(message, Measurement) or (message.outcome is Outcome.DIVERGED and not self._job.longest):
            self._end()
        if message.outcome is Outcome.OOM:
            return message  # beside the training, which goes on
        if self._job.longest is None:
            self._count(config, message, idle_steps=self._trained_steps - before - cost)
            return mark_busy_host(message)
        return self._measured_beside(config, message, is_in_turn=not effort.warmup)

    def _measured_beside(self, config: Config, message: Measurement, *, is_in_turn: bool) -> Measurement:
        if not message.outcome.is_measured:
            if self._length == self._job.longest and message.outcome is not Outcome.WRONG_GRADIENT:
                raises = message.outcome is Outcome.SCRIPT_ERROR
                limit = " (a model may take no more than max_position_embeddings)" if raises else ""
                where = f"a step of {self._length} tokens beside the training fails{limit}"
                raise ScriptError(f"{where}: {message.message}")
            return message
        self._count(config, message, idle_steps=0)
        return mark_busy_host(message if is_in_turn else self._of_whole_step(config, message))

    @property
    def _share(self) -> float:
        """Return the share of a step that one counts as: a shorter one beside the training for less."""
        return 1.0 if self._length is None or self._job.longest is None else self._length / self._job.longest

    def _of_whole_step(self, config: Config, measured: Measurement) -> Measurement:
        """Return a measurement beside the training with the peak of a whole step, where that has more.

        There an optimizer steps, and gradients of the passes before may be held.
        """
        self._send(Check(config=config, compares=False))
        whole = self._receive()
        if not isinstance(whole, GradientCheck):
            self._end()
        whole_bytes = (measured.held_bytes or 0) + (whole.step_bytes or 0)
        return replace(measured, peak_bytes=max(measured.peak_bytes or 0, whole_bytes))

    def check(self, config: Config) -> GradientCheck:
        """Compare the config's gradients with those without recompute, once for each config."""
        if config.is_none:
            return UNCOMPARED
        if config not in self.checks:
            began = time.monotonic()
            self._send(Check(config=config))
            message = self._receive()
            if not isinstance(message, GradientCheck):
                self._end()
            self.spent_seconds += time.monotonic() - began
            self.checks[config] = _explained(message)
        return self.checks[config]

    def whole_step(self, config: Config) -> GradientCheck | None:
        """Return the memory of a whole step on fake tensors, from the comparison of gradients.

        ``None`` where no step is left for it.
        """
        is_known = config.is_none or config in self.checks
        return self.check(config) if is_known or self.left_steps >= CHECK_STEPS else None

    def keep_config(self, config: Config | None, message: str, lengths: Lengths | None = None) -> None:
        """End the search: the training goes on with this config, or with what is on; tell its user why.

        With ``lengths`` shorter batches get configs of their own.
        """
        self._send(KeepConfig(config=config, message=message, lengths=lengths))

    def give_up(self, reason: str) -> None:
        """End the search with what is on."""
        self.keep_config(None, explain_end(reason))

    def hang_up(self) -> None:
        """Tell the training that nobody is here any more."""
        self._line.close()

    def _fitted(self, effort: Effort) -> Effort:
        if effort.warmup == 0:
            return effort
        timed = self._allowed // TRIALS - CHECK_STEPS - self._cost(None, replace(effort, steps=0))
        return replace(effort, steps=min(effort.steps, max(timed, FEWEST_TIMED)))

    def _cost(self, config: Config | None, effort: Effort) -> int:
        """Return the steps that a measurement takes: on a CPU one more, in which live tensors are counted."""
        observed = self.detect().device.kind == CPU
        if config in self._known and effort.warmup == 0:
            return effort.steps
        compared = 0 if config is None or config.is_none or config in self.checks else CHECK_STEPS
        return compared + max(effort.warmup, 1) + observed + effort.steps

    def _count(self, config: Config, measurement: Measurement, idle_steps: int) -> None:
        # In the steps before it the last one's config was still on.
        idle_seconds = max(idle_steps, 0) * self._step_seconds
        self.spent_seconds += idle_seconds + measurement.warmup_seconds + sum(measurement.step_seconds)
        self._step_seconds = statistics.median(measurement.step_seconds or (0.0,))
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
            self._trained_steps = message.step
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


def start_beside(work: Callable[[socket.socket], None]) -> socket.socket:
    """Run a function in a process of its own, which is nobody's child, and give the other end of its line.

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
    for number in range(3):
        os.dup2(null, number)
    os.close(null)
