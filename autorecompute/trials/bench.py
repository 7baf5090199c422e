"""Measures configs on workers, one by one or in turns."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import statistics
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from autorecompute.backends import registry
from autorecompute.errors import AutorecomputeError, ScriptError, SetupError, TooLargeError, UsageError, WrongBatchError
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.ranges import NEGLIGIBLE_SHARE
from autorecompute.training_job import ACCUMULATION_VARIABLE, ALLOCATOR, BATCH_VARIABLE, Detection, default_allocator
from autorecompute.trials.job import Effort, begins_too_large, known_loader
from autorecompute.trials.private import WRITABLE, cache_variables, explained
from autorecompute.trials.process import WorkerProcess
from autorecompute.waiting import raise_if_over
from autorecompute.worker.protocol import Check, Ended, Failed, Message, Order, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autorecompute.trials.job import Job


POLL_SECONDS = 0.1

CHECK_STEPS = 2
"""As so many steps counts a comparison of gradients: one with the config, and one without."""


def _read_on(log: Path, places: dict[Path, int]) -> bytes:
    """Return what was written to a log since the last call, and note its place."""
    with log.open("rb") as file:
        file.seek(places.get(log, 0))
        output = file.read()
        places[log] = file.tell()
    return output


@contextlib.contextmanager
def following(logs: Path, stream: BinaryIO) -> Iterator[None]:
    """Copy the workers' logs to a stream as they grow, and all of them to their end when the context ends.

    The worker writes to a file, never to a pipe of ours: whatever becomes of this process, nothing that it prints is
    lost, and nothing holds it up.
    """
    copied: dict[Path, int] = {}
    is_over = threading.Event()

    def copy() -> None:
        stream.writelines(_read_on(log, copied) for log in sorted(logs.glob("*.log")))
        stream.flush()

    def follow() -> None:
        while not is_over.wait(POLL_SECONDS):
            copy()
        copy()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


GIVEN_LENGTH = (
    "--longest gives its batches {longest} tokens a sample: a model may take fewer (max_position_embeddings)."
)
START_TIMEOUT_SECONDS = 900.0
# A step may take so many times what it took at first before the script is said to hang, and five minutes at least: an
# evaluation or a checkpoint can lie between two steps.
LEAST_STALL_SECONDS = 300.0
SLOWDOWN = 20.0


class Bench:
    """Bench that measures configs; a context manager that leaves no process behind.

    Whatever waits for a worker raises ``KeyboardInterrupt`` where the user stops the command, and ``OutOfTime`` where
    its time is over (``waiting.py``).

    Args:
        job: The job that is trained.
        batch: The target batch; ``None`` takes what the script gives.
        logs: Folder for the workers' output.
        limit_bytes: The most that a watched process may take of a card; ``None`` for all there is.
        debugs: True if the first worker keeps the terminal and has all the time it wants.
        study: The folder of the study, whose processes share what they compile; ``None`` where there is none.

    Attributes:
        output_at: A sentence for messages about where a worker's output is, with ``{log}`` for its file.
        steps: Steps of the training that all processes were asked for so far.
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
        self._base |= default_allocator(os.environ)
        self._base |= cache_variables(study, os.environ) if study is not None else {}
        self._worker: WorkerProcess | None = None
        self._detection: Detection | None = None
        self._other_detections: tuple[Detection, ...] = ()
        self._has_measured = self._surveyed = False
        self._pace: float | None = None
        self.log = logs / "00.log"
        self.output_at = "Its output: {log}"
        self.starts = self.steps = 0
        self._taken: dict[Path, int] = {}
        self._whole_steps: dict[Config, GradientCheck] = {}

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
        return self._batch is not None and not self._job.takes_batch and self._job.global_batch is None

    def detect(self) -> Detection:
        """Start the script up to its first training session, where it waits, and return the detection.

        Raises:
            ScriptError: the script fails before it trains, or never trains a model that can be tuned.
            SetupError: the installation lacks something.
            UsageError: the batch cannot reach the model.
        """
        if self._worker is None:
            message = self._start_trials()
            failed = message if isinstance(message, Failed) and not message.is_setup else None
            if failed is not None and (failed.outcome is Outcome.LOST or self._detection is not None):
                self.close()  # what keeps a script from its start that has started before may not last
                message = self._start_trials()
            if not isinstance(message, Detection):
                self.close()
                where = self.output_at.format(log=self.log)
                if self._job.longest is not None:
                    where += f" {GIVEN_LENGTH.format(longest=self._job.longest)}"
                raise failure_to_start(message, self.log, self.take_output(), where)
            assert self._worker is not None, "it has just spoken"
            is_first, self._detection = self._detection is None, self._detection if self._surveyed else message
            if is_first and not (self._is_debugged or self._job.fakes) and begins_too_large(message):
                self.close()
                return self.detect()
            self._surveyed = True
            answers = self._worker.answers[1:]
            self._other_detections = tuple(answer for answer in answers if isinstance(answer, Detection))
        assert self._detection is not None, "a live worker has spoken"
        return self._detection

    def detect_ranks(self) -> tuple[Detection, ...]:
        """Return the detection of each rank, in their order. The first has the figures that stand for all."""
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
                # A script that cannot give another batch trains on, and so does one beside which memory ran out.
                if not message.outcome.is_measured and message.outcome not in {Outcome.WRONG_BATCH, Outcome.OOM}:
                    self.close()  # a loss that is no number stays one, whatever is recomputed next
                return mark_busy_host(message)
            has_measured = self._has_measured
            self.close()
            if not (isinstance(message, Ended) and message.exit_code == 0):
                return as_measurement(message)
            if not has_measured:
                break
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
            self.steps += CHECK_STEPS
            message = self._worker.receive(START_TIMEOUT_SECONDS)
            if isinstance(message, GradientCheck):
                return message
            self.close()
            if not isinstance(message, Ended):
                break
        return as_measurement(message)

    def whole_step(self, config: Config) -> GradientCheck | None:
        """Return the memory of a whole step on fake tensors, which costs the training no step.

        ``None`` where no live worker has measured anything.
        """
        if config in self._whole_steps or self._worker is None or not self._has_measured:
            return self._whole_steps.get(config)
        self._worker.send(Check(config=config, compares=False))
        message = self._worker.receive(START_TIMEOUT_SECONDS)
        if not isinstance(message, GradientCheck):
            self.close()
            return None
        self._whole_steps[config] = message
        return message

    def watch(self, environment: Mapping[str, str], effort: Effort, batch: int | None) -> Measurement:
        """Measure a fresh process under nothing but this environment, as a user would run it.

        The peak is that of the whole process. ``batch`` may differ from the target.
        """
        self.close()
        watch = effort.order(Config())
        self.steps += effort.watched_steps
        message = self._start(environment, batch, watch)
        self.close()
        return mark_busy_host(message if isinstance(message, Measurement) else as_measurement(message))

    def under(self, variables: Mapping[str, str], logs: Path) -> Bench:
        """Return another bench for the same job, whose processes see these variables, too.

        Ends the live worker of this one.
        """
        self.close()
        other = Bench(self._job, self._batch, logs, limit_bytes=self._limit_bytes)
        other._base = {**self._base, **variables}
        return other

    def take_output(self) -> str:
        """Return the output of the live or last worker since the last call."""
        return _read_on(self.log, self._taken).decode(errors="replace") if self.log.is_file() else ""

    def _settings(self, batch: int | None, watch: Order | None) -> Settings:
        return Settings(
            tuner=os.getpid(),
            target_batch=batch,
            override_loader=not self._job.takes_batch,
            loader=known_loader(self._detection, is_watched=watch is not None),
            watch=watch,
            # A trial that runs out of memory costs a process, and tells less than a peak above the limit does.
            limit_bytes=self._limit_bytes if watch is not None else None,
            backend=self._job.backend,
            fakes=self._job.fakes,
            card=self._job.card,
            ranks=self._job.ranks,
            replaces_checkpointing=self._job.replaces_checkpointing,
            is_surveyed=self._surveyed,
            is_exact=self._job.is_exact,
            longest=self._job.longest,
            step_samples=self._job.step_samples(batch),
        )

    def _start_trials(self) -> Message:
        variables = {**registry.trial_variables(self._job.backend), "PYTHONUNBUFFERED": "1"}
        return self._start(variables, self._batch, None)

    def _start(self, variables: Mapping[str, str], batch: int | None, watch: Order | None) -> Message:
        self.starts += 1
        self.log = self._logs / f"{self.starts:02d}.log"
        with explained(f"{self.log} cannot be written", WRITABLE):
            self.log.unlink(missing_ok=True)
        self._has_measured = False
        environment = {**self._base, **variables}
        if batch is not None:
            environment[BATCH_VARIABLE] = str(batch)
            if (passes := self._job.passes(batch)) is not None:
                environment[ACCUMULATION_VARIABLE] = str(passes)
        command, settings = self._job.worker_command(batch), self._settings(batch, watch)
        raise_if_over()
        self._worker = WorkerProcess(command, environment, self.log, settings, in_foreground=self._is_debugged)
        return self._wait(watch)

    def _wait(self, order: Order | None) -> Message:
        # How long the steps are of a script that is started, or has measured nothing yet, is not known.
        assert self._worker is not None, "a script that is waited for was started"
        if self._is_debugged:
            return self._worker.receive(math.inf)
        steps = 0 if order is None else order.warmup + order.steps
        return self._worker.receive(START_TIMEOUT_SECONDS * (1 + steps), stall=START_TIMEOUT_SECONDS)

    @property
    def _is_debugged(self) -> bool:
        return self._debugs and self.starts == 1

    def _ask(self, order: Order) -> Message:
        assert self._worker is not None, "detect() comes first"
        self._worker.send(order)
        # Live tensors are counted in a step between those of the warm-up and the timed ones.
        self.steps += order.warmup + (order.warmup > 0) + order.steps
        if self._pace is None or self._is_debugged:
            return self._wait(order)
        slow_step = max(self._pace * SLOWDOWN, LEAST_STALL_SECONDS)
        return self._worker.receive(slow_step * (order.warmup + order.steps), stall=slow_step)

    def _note_pace(self, measurement: Measurement, effort: Effort) -> None:
        self._has_measured = True
        if effort.batch is not None or effort.length is not None:
            return
        self._pace = self._pace or measurement.median_step_seconds


LEAST_ROOM_BYTES = 16 * 1024  # on a disk: with less a script cannot print, and fails of that
TAIL_LINES = 5
BUSY = "host busy"
LAST_WORDS_LINES = 60  # a launcher adds forty lines of its own to the last words of a rank


def as_measurement(message: Message) -> Measurement:
    """Return a measurement for a worker's last message, which was another one.

    Raises:
        SetupError: the installation does not allow training.
    """
    if isinstance(message, Failed):
        if message.is_setup:
            raise SetupError(message.message)
        return Measurement(outcome=message.outcome, message=message.message, trace=message.trace)
    if isinstance(message, Ended):
        text = f"the script ended by itself after {message.steps} steps, with exit code {message.exit_code}"
        said = f": {message.message}" if message.message else ""
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=f"{text}{said}")
    return as_measurement(_as_failed(message))


def unwritable(config: Config, detection: Detection) -> Measurement | None:
    """Return the failure of a config that no process could be given; ``None`` where one can.

    Raises:
        SetupError: these versions read no config at all.
    """
    try:
        registry.render(config, (), detection.versions, Path())
    except UsageError as error:
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=str(error))
    return None


def too_short(message: Message, steps: int, where: str) -> ScriptError:
    """Return the error of a script that ended by itself before it had taken the steps of one trial."""
    assert isinstance(message, Ended), "only an end is too short"
    # Where live tensors are counted, that takes one step more.
    least = max(steps, message.steps) + 1
    return ScriptError(
        f"The script ended after {message.steps} steps; a trial needs at least {least}. Let it train longer, ask for "
        f"fewer with --steps and --warmup, or check that its data fills batches of the target's size. "
        f"{where}"
    )


def failure_to_start(message: Message, log: Path, output: str, where: str) -> AutorecomputeError:
    """Return the error of a worker that came to no training session."""
    if not output:
        where = "It printed nothing."
    if not isinstance(message, Failed | Ended):
        message = _as_failed(message)
    if isinstance(message, Failed) and message.is_setup:
        return SetupError(message.message)
    if shutil.disk_usage(log.parent).free < LEAST_ROOM_BYTES:
        return SetupError(
            f"The disk is full at {log}, where the script writes. Trials so far are kept: free some space and run the "
            "same command again."
        )
    if isinstance(message, Failed) and (message.is_usage or message.outcome is Outcome.WRONG_BATCH):
        return (UsageError if message.is_usage else WrongBatchError)(message.message)
    if isinstance(message, Failed):
        kind = TooLargeError if message.outcome.is_about_memory else ScriptError
        return kind(f"{_describe_failure(message, output)}Outcome: {message.outcome}. {where}")
    if message.exit_code:
        return ScriptError(
            f"The script left with exit code {message.exit_code} before it trained. Check its arguments, which "
            f"follow --.{_quote(output, TAIL_LINES)}{where}"
        )
    return ScriptError(f"The script ended before it trained. {message.advice} {where}")


def _as_failed(message: Message) -> Failed:
    return Failed(outcome=Outcome.CRASH, message=f"unexpected message from the worker: {type(message).__name__}")


def _describe_failure(failed: Failed, output: str) -> str:
    """Return the script's own traceback, what the worker said of the failure, or its last words where it died of it."""
    if failed.trace:
        trace = "".join(f"  {line}\n" for line in failed.trace)
        return f"The script fails before it trains. {failed.message}\n{trace}"
    if failed.message.endswith("."):
        return f"{failed.message} "
    return f"The script fails before it trains: {failed.message}.{_quote(output, LAST_WORDS_LINES)}"


def _quote(output: str, lines: int) -> str:
    tail = "".join(f"  {line}\n" for line in output.splitlines()[-lines:])
    return f" It printed last:\n{tail}" if tail else " "


def mark_busy_host(measurement: Measurement) -> Measurement:
    """Return the measurement, marked where other processes had more than a negligible share of the cores."""
    share = measurement.others_share
    others = tuple(mark for mark in measurement.marks if not mark.startswith(BUSY))
    if share is None or share <= NEGLIGIBLE_SHARE:
        return replace(measurement, marks=others)
    return replace(measurement, marks=(*others, f"{BUSY}: {100 * share:.0f} % of the cores by others"))


CPU = "cpu"
ONE_STEP = Effort(warmup=0, steps=1)


def takes_turns(bench: Bench) -> bool:
    """Tell whether turns are worth their swaps: the training system makes them in no time, and memory allows it.

    A card's allocator keeps the blocks of each config. Where its segments cannot grow, it would free and request them
    again in every step near its limit.
    """
    detection = bench.detect()
    keeps_blocks = detection.device.kind != CPU and ALLOCATOR not in detection.versions
    return not keeps_blocks and registry.backend_of(detection.versions).takes_turns(detection)


def drifts(bench: Bench) -> bool:
    """Tell whether steps are comparable within a second or so alone, as on a processor that others use as well."""
    return bench.detect().device.kind == CPU


def measure_in_turns(bench: Bench, configs: Sequence[Config], steps: int) -> dict[Config, Measurement]:
    """Measure several configs a step at a time.

    A config that fails is left out from then on. Where the script ends meanwhile, it is started again, and each config
    has the steps that were timed until then, one at least.
    """
    found: dict[Config, list[Measurement]] = {config: [] for config in configs}
    running, starts = list(found), bench.starts
    for _ in range(steps):
        for config in running:
            found[config].append(bench.measure(config, ONE_STEP))
        running = [config for config in reversed(running) if found[config][-1].outcome.is_measured]
        if bench.starts != starts:
            break  # each further step could take another start
    return {config: join(measured) for config, measured in found.items()}


def join(measurements: Sequence[Measurement]) -> Measurement:
    """Return one measurement of a config's steps that were measured one by one; the last one where that failed."""
    last = measurements[-1]
    if not last.outcome.is_measured:
        return last
    shares = [each.others_share for each in measurements if each.others_share is not None]
    joined = replace(
        max(measurements, key=lambda each: each.peak_bytes or 0),
        step_seconds=tuple(seconds for each in measurements for seconds in each.step_seconds),
        cpu_seconds=tuple(seconds for each in measurements for seconds in each.cpu_seconds),
        losses=tuple(loss for each in measurements for loss in each.losses),
        others_share=statistics.mean(shares) if shares else None,
        warmup_seconds=sum(each.warmup_seconds for each in measurements),
        compile_seconds=sum(each.compile_seconds for each in measurements),
    )
    return mark_busy_host(joined)
