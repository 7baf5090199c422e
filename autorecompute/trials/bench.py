"""Measures configs of one job, on a live worker that is replaced when it breaks."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Self

from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection
from autorecompute.trials.caches import cache_variables
from autorecompute.trials.effort import Effort
from autorecompute.trials.endings import as_measurement, failure_to_start, mark_busy_host, too_short, unwritable
from autorecompute.trials.first_batch import begins_too_large, known_loader
from autorecompute.trials.process import WorkerProcess
from autorecompute.waiting import raise_if_over
from autorecompute.worker.protocol import Check, Ended, Failed, Message, Order, Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from autorecompute.trials.job import Job

START_TIMEOUT_SECONDS = 900.0
LEAST_STALL_SECONDS = 300.0
SLOWDOWN = 20.0
"""A step may take so many times what it took at first before the script is said to hang, and five minutes at least: an
evaluation or a checkpoint can lie between two steps."""


class Bench:
    """Where configs are measured; a context manager that leaves no process behind.

    Whatever waits for a worker raises ``KeyboardInterrupt`` where the user stops the command, and ``OutOfTime`` where
    its time is over (``waiting.py``).

    Args:
        job: What is trained.
        batch: The target batch; ``None`` takes what the script gives.
        logs: Folder for the workers' output.
        limit_bytes: What a trial may take of a card at most; ``None`` for all there is.
        debugs: Whether the first worker keeps the terminal and has all the time it wants.
        study: The folder of the study, whose processes share what they compile; ``None`` where there is none.

    Attributes:
        output_at: A sentence for messages about where a worker's output is, with ``{log}`` for its file.
    """

    def __init__(  # noqa: PLR0913  (what a worker is started with)
        self,
        job: Job,
        batch: int | None,
        logs: Path,
        *,
        limit_bytes: int | None = None,
        debugs: bool = False,
        study: Path | None = None,
    ) -> None:
        self._limit_bytes, self._debugs = limit_bytes, debugs
        self._job, self._batch, self._logs = job, batch, logs
        self._base = {name: value for name, value in os.environ.items() if name not in registry.variables()}
        self._base |= cache_variables(study, os.environ) if study is not None else {}
        self._worker: WorkerProcess | None = None
        self._detection: Detection | None = None
        self._other_detections: tuple[Detection, ...] = ()
        self._has_measured = False
        self._pace: float | None = None
        self.log = logs / "00.log"
        self.output_at = "Its output: {log}"
        self.starts = 0
        self._taken: dict[Path, int] = {}
        self._step_bytes: dict[Config, int | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_live(self) -> bool:
        """Tell whether a script waits for orders; where none does, the next one has to be started first."""
        return self._worker is not None

    def close(self) -> None:
        """End the live worker, if there is one."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def can_change_batch(self) -> bool:
        """Tell whether the script's DataLoader is told the batch, so that it can be told another."""
        return self._batch is not None and not self._job.takes_batch

    def detect(self) -> Detection:
        """Return what can be recomputed; starts the script up to its first training session, where it waits.

        Raises:
            ScriptError: the script fails before it trains, or never trains a model that can be tuned.
            SetupError: the installation lacks something.
            UsageError: the batch cannot reach the model.
        """
        if self._worker is None:
            message = self._start_trials()
            if isinstance(message, Failed) and (message.outcome is Outcome.LOST or self._detection is not None):
                self.close()  # what keeps a script from its start that has started before may not last
                message = self._start_trials()
            if not isinstance(message, Detection):
                self.close()
                raise failure_to_start(message, self.log, self.take_output(), self.output_at.format(log=self.log))
            assert self._worker is not None, "it has just spoken"
            is_first, self._detection = self._detection is None, message
            if is_first and not (self._is_debugged or self._job.fakes) and begins_too_large(message):
                self.close()
                return self.detect()
            answers = self._worker.answers[1:]
            self._other_detections = tuple(answer for answer in answers if isinstance(answer, Detection))
        assert self._detection is not None, "a live worker has spoken"
        return self._detection

    def detect_ranks(self) -> tuple[Detection, ...]:
        """Return what :meth:`detect` finds on each rank, in their order.

        The first has the figures that stand for all.
        """
        return (self.detect(), *self._other_detections)

    def measure(self, config: Config, effort: Effort) -> Measurement:
        """Measure a config in place; a worker that breaks is replaced before the next one.

        Raises:
            ScriptError: the script ends before a single config was measured.
        """
        for _ in range(2):
            if (refused := unwritable(config, self.detect())) is not None:
                return refused
            message = self._ask(effort.order(config, self._batch))
            if isinstance(message, Measurement):
                self._note_pace(message, effort)
                if not message.outcome.is_measured:
                    self.close()  # a loss that is no number stays one, whatever is recomputed next
                return mark_busy_host(message)
            has_measured = self._has_measured
            self.close()
            if not (isinstance(message, Ended) and message.exit_code == 0):
                return as_measurement(message)
            if not has_measured:
                raise too_short(message, effort.warmup + effort.steps, self.output_at.format(log=self.log))
        raise too_short(message, effort.warmup + effort.steps, self.output_at.format(log=self.log))

    def check(self, config: Config) -> GradientCheck | Measurement:
        """Compare the config's gradients with those without recompute; a measurement says why it could not.

        Raises:
            ScriptError: the script fails before it trains.
        """
        for _ in range(2):
            if self._worker is None or not self._has_measured:
                first = self.measure(config, Effort(warmup=1, steps=1))
                if not first.outcome.is_measured:
                    return first
            assert self._worker is not None, "a worker has just measured"
            self._worker.send(Check(config=config))
            message = self._worker.receive(START_TIMEOUT_SECONDS)
            if isinstance(message, GradientCheck):
                return message
            self.close()
            if not isinstance(message, Ended):
                break
        return as_measurement(message)

    def step_bytes(self, config: Config) -> int | None:
        """Return what a whole step on fake tensors takes beyond what is there before, which costs the training no step.

        ``None`` where none can be run, and where no live worker has measured anything.
        """
        if config in self._step_bytes or self._worker is None or not self._has_measured:
            return self._step_bytes.get(config)
        self._worker.send(Check(config=config, compares=False))
        message = self._worker.receive(START_TIMEOUT_SECONDS)
        if not isinstance(message, GradientCheck):
            self.close()
            return None
        self._step_bytes[config] = message.step_bytes
        return message.step_bytes

    def watch(self, environment: Mapping[str, str], effort: Effort, batch: int | None) -> Measurement:
        """Measure a fresh process under nothing but this environment, as a user would run it.

        The peak is that of the whole process. ``batch`` may differ from the target.
        """
        self.close()
        watch = effort.order(Config())
        message = self._start(lambda address: self._settings(address, batch, watch=watch), environment, batch, watch)
        self.close()
        return mark_busy_host(message if isinstance(message, Measurement) else as_measurement(message))

    def under(self, variables: Mapping[str, str], logs: Path) -> Bench:
        """Return another bench for the same job, whose processes see these variables, too.

        Ends the live worker of this one.

        Args:
            variables: What is added to their environment.
            logs: Folder for their output.
        """
        self.close()
        other = Bench(self._job, self._batch, logs, limit_bytes=self._limit_bytes)
        other._base = {**self._base, **variables}
        return other

    def take_output(self) -> str:
        """Return what the live or last worker printed since this was asked last."""
        if not self.log.is_file():
            return ""
        with self.log.open("rb") as log:
            log.seek(self._taken.get(self.log, 0))
            output = log.read()
            self._taken[self.log] = log.tell()
        return output.decode(errors="replace")

    def _settings(self, address: str, batch: int | None, watch: Order | None = None) -> Settings:
        return Settings(
            address=address,
            tuner=os.getpid(),
            target_batch=batch,
            override_loader=not self._job.takes_batch,
            loader=known_loader(self._detection, is_watched=watch is not None),
            watch=watch,
            limit_bytes=self._limit_bytes,
            backend=self._job.backend,
            fakes=self._job.fakes,
            card=self._job.card,
            ranks=self._job.ranks,
            replaces_checkpointing=self._job.replaces_checkpointing,
        )

    def _start_trials(self) -> Message:
        variables = {**registry.trial_variables(self._job.backend), "PYTHONUNBUFFERED": "1"}
        return self._start(lambda address: self._settings(address, self._batch), variables, self._batch, None)

    def _start(
        self, settings: Callable[[str], Settings], variables: Mapping[str, str], batch: int | None, watch: Order | None
    ) -> Message:
        self.starts += 1
        self.log = self._logs / f"{self.starts:02d}.log"
        self._forget(self.log)
        self._has_measured = False
        environment = {**self._base, **variables, **self._job.batch_environment(batch)}
        command = self._job.worker_command(batch)
        raise_if_over()
        self._worker = WorkerProcess(command, environment, self.log, settings, in_foreground=self._is_debugged)
        return self._wait(watch)

    def _wait(self, order: Order | None) -> Message:
        """Return the answer of a script that is started, or has measured nothing yet.

        How long its steps are is not known.
        """
        assert self._worker is not None, "a script that is waited for was started"
        if self._is_debugged:
            return self._worker.receive(math.inf)
        steps = 0 if order is None else order.warmup + order.steps
        return self._worker.receive(START_TIMEOUT_SECONDS * (1 + steps), stall=START_TIMEOUT_SECONDS)

    @staticmethod
    def _forget(log: Path) -> None:
        try:
            log.unlink(missing_ok=True)
        except OSError as error:
            raise SetupError(f"{log} cannot be written: {error.strerror}. Make its folder writable.") from error

    @property
    def _is_debugged(self) -> bool:
        return self._debugs and self.starts == 1

    def _ask(self, order: Order) -> Message:
        assert self._worker is not None, "detect() comes first"
        self._worker.send(order)
        if self._pace is None or self._is_debugged:
            return self._wait(order)
        slow_step = max(self._pace * SLOWDOWN, LEAST_STALL_SECONDS)
        return self._worker.receive(slow_step * (order.warmup + order.steps), stall=slow_step)

    def _note_pace(self, measurement: Measurement, effort: Effort) -> None:
        self._has_measured = True
        if effort.batch is not None:
            return
        self._pace = self._pace or measurement.median_step_seconds
