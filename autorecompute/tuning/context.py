"""State that all parts of a tuning share: job, bench, study, settings, and the resources that they hold."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from autorecompute.backends.registry import backend_of, render
from autorecompute.errors import TooLargeError, UsageError
from autorecompute.figures import Figures
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH, SEQUENCE
from autorecompute.search.sampling import MODEL
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.folder import write_files
from autorecompute.studies.problem import Head
from autorecompute.studies.shared_study import SharedStudy
from autorecompute.training_job import Detection
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort, mixed_lengths
from autorecompute.trials.private import hold_device
from autorecompute.tuning.budget import Budget, Task
from autorecompute.tuning.race import FINALISTS, LOOKS
from autorecompute.units import MIB, format_bytes
from autorecompute.waiting import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from autorecompute.measurement import Measurement, Prediction, Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.result import Best


NEEDED = (Task.CHECK, Task.CONFIRMATION)
"""Tasks of an answer."""

WISHED = (*[Task.ROUND] * (LOOKS[0] * (FINALISTS + 1)), Task.CONFIRMATION)
"""Tasks of a better answer: a race up to its first look, and the rival batch."""


UNTOLD_SECONDS = 3600.0
"""Length of a training of which nobody tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """Settings that the user gave.

    Attributes:
        limit_bytes: The memory limit; ``None`` takes the bytes available.
        max_trials: The most trials over the study's life.
        timeout_seconds: Time for the whole command; ``None`` for no end.
        began_seconds: Start of the command, a time of :func:`autorecompute.waiting.clock`; ``None`` for that of the
            tuning.
        effort: Steps of a trial.
        batch: The target batch; ``None`` takes that of the script.
        sampler: One of the names in ``search/sampling.py``.
        is_fresh: True to take nothing over from other studies.
        rival_batch: The largest batch that fits without recompute, where it was measured before.
        turns_knobs: True to try other settings on the winner, each in fresh processes.
        training_seconds: Length of the training that the answer is for.
    """

    limit_bytes: int | None
    max_trials: int
    timeout_seconds: float | None
    began_seconds: float | None = None
    effort: Effort = field(default_factory=Effort)
    batch: int | None = None
    sampler: str = MODEL
    is_fresh: bool = False
    rival_batch: Figures | None = None
    turns_knobs: bool = False
    training_seconds: float = UNTOLD_SECONDS


class Progress(Protocol):
    """Watches a tuning. Its methods are called for each step, in order."""

    def detected(
        self,
        detection: Detection,
        limit_bytes: int,
        *,
        known_trials: Sequence[Trial],
        budget: int,
        deadline_seconds: float,
    ) -> None:
        """Tell that the script reached its first training session.

        Args:
            detection: Its training.
            limit_bytes: The memory limit.
            known_trials: Trials of earlier sessions, and of other workers.
            budget: The most trials, those included.
            deadline_seconds: Time of :func:`autorecompute.waiting.clock` when the command should end; infinite without
                a timeout.
        """

    def trial_begins(self, number: int, description: str, reason: str, prediction: Prediction | None) -> None:
        """Tell that a config is about to be measured, of which so much is expected."""

    def trial_ended(self, trial: Trial) -> None:
        """Tell that it was measured, or failed to be."""

    def leads(self, trial: Trial, relative_throughput: float | None) -> None:
        """Tell that the search is over for now, and that the config of this trial is the one to be confirmed."""

    def may_be_used(self, best: Best) -> None:
        """Tell that from now on there is an answer, however the tuning ends."""

    def note(self, text: str) -> None:
        """Tell a line."""


@dataclass(slots=True, kw_only=True, eq=False)
class TuningContext:
    """State that every part of a tuning works with.

    Attributes:
        shared: The study in the storage of its other workers; ``None`` for a study in its folder alone.
        budget: The time there is. Every context begins with one of its own.
        detection: The training that was detected, from :meth:`detect` on.
        problem: The problem, from :meth:`detect` on. Workers that share a study agree on one later.
    """

    job: Job
    bench: Bench
    folder: StudyFolder
    settings: TuningSettings
    progress: Progress
    shared: SharedStudy | None = None
    budget: Budget = field(init=False)
    detection: Detection = field(init=False)
    problem: Problem = field(init=False)

    def __post_init__(self) -> None:
        began = self.settings.began_seconds
        self.budget = Budget(self.settings.timeout_seconds, clock() if began is None else began)

    @property
    def logs(self) -> Path:
        """Return the folder of the output of this tuning's processes; workers of one study may share its folder."""
        return self.folder.workers if self.shared is None else self.folder.workers / self.shared.session

    @property
    def command(self) -> list[str]:
        """Return the command that trains at the target batch."""
        return self.job.plain_command(self.settings.batch)

    @property
    def memory(self) -> MemoryModel | None:
        """Return the memory model of the detection alone; ``None`` where it tells nothing."""
        return backend_of(self.detection.versions).memory_of(self.detection)

    @property
    def rest_bytes(self) -> int:
        """Return the bytes held between two steps: the model, and the optimizer's state as far as it is forecast."""
        memory = self.memory
        return self.detection.resting_bytes if memory is None else memory.base_bytes(self.dims)

    @property
    def head(self) -> Head:
        """Return the problem and its sizes at the target batch, as a study that begins now."""
        return Head.of(self.folder.name, self.command, self.problem, Sizes.of(self.detection, self.rest_bytes))

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of a step at the batch that was detected."""
        return {**self.detection.dims, BATCH: self.detection.batch}

    def why_not_without(self) -> str:
        """Return why a card surely has no room for a step without recompute, in words; empty where it may have.

        Such a step would cost a process, and tell what is known: that it ran out of memory.
        """
        detection, memory = self.detection, self.memory
        if memory is None or detection.outside_bytes is None:
            return ""
        plain = memory.forecast(Config(), self.dims)
        room = detection.device.total_bytes - detection.outside_bytes
        if plain.peak_bytes <= SURELY_BEYOND * room:
            return ""
        return f"by forecast it takes {format_bytes(plain.peak_bytes)}, and the card has {format_bytes(room)} for it"

    def note(self, text: str) -> None:
        """Report a line to whoever watches."""
        self.progress.note(text)

    def detect(self, open_bench: Callable[[int], Bench] | None = None) -> None:
        """Start the script and find what it trains, the limit and the problem.

        With a function that opens a bench nobody asked for the batch: it is halved where more has no room.

        Raises:
            ScriptError: the script fails by itself, or not even a single sample has room.
            SetupError: the installation lacks something.
            UsageError: the batch cannot reach the model.
        """
        try:
            with self.budget.timing(Task.START):
                self.detection = self.bench.detect()
        except TooLargeError:
            batch = self.settings.batch
            if open_bench is None or batch is None or batch == 1:
                raise
            self.note(f"batch {batch}: the script runs out of memory before anything can be recomputed")
            self.bench, self.settings = open_bench(batch // 2), replace(self.settings, batch=batch // 2)
            self.detect(open_bench)
            return
        backend = backend_of(self.detection.versions)
        if self.job.longest is not None and backend.memory_by_length(self.detection) is None:
            name = self.detection.versions["backend"]
            raise UsageError(f"The backend {name} cannot give batches another length. Leave --longest out.")
        limit_bytes = self.settings.limit_bytes or choose_limit(self.detection, self.folder, self.note)
        self.problem = Problem.of(self.detection, limit_bytes)

    def emit(self, config: Config, knobs: Collection[str] = ()) -> dict[str, str]:
        """Return the variables for a fresh process that trains with a config. Files that they name are written.

        Raises:
            SetupError: a file cannot be written.
        """
        # Neither another tuning nor a verb that gives the answer out may write where a process reads.
        rendered = render(config, knobs, self.detection.versions, self.logs / "emitted" / config.hash)
        write_files(rendered.files)
        return rendered.variables

    def watch(self, environment: Mapping[str, str], batch: int | None) -> Measurement:
        """Train in a fresh process under these variables, as long as a trial measures."""
        return self.bench.watch(environment, self.watched_effort, batch)

    @property
    def watched_effort(self) -> Effort:
        """Return the steps of a process that is watched as a whole.

        It goes through other lengths first, where steps of some were seen to run: what an allocator keeps of tensors of
        one length may not serve those of another.
        """
        shorter = None
        if self.job.longest is not None:
            shorter = backend_of(self.detection.versions).memory_by_length(self.detection)
        return replace(self.settings.effort, mixed=mixed_lengths(shorter, self.dims[SEQUENCE]) if shorter else ())

    def pays(self, gain: float, seconds: float) -> bool:
        """Tell whether a share of a step that may be gained is more, over the whole training, than so many seconds."""
        return gain * self.settings.training_seconds > seconds

    def expect(self, *tasks: Task) -> float:
        """Return the seconds that tasks of the worker should take, with a start where none of ours is live."""
        must_start = self.bench.starts and not self.bench.is_live  # a training that goes on is never started by us
        return self.budget.expect(*tasks, *((Task.START,) if must_start else ()))

    def reserve_seconds(self, trials: Sequence[Trial]) -> float:
        """Return the time that an answer takes after these trials; where none of them fits, finding one comes first."""
        fits = any(trial.fits for trial in trials)
        return self.budget.reserve_seconds(NEEDED, WISHED if fits else ())

    def allows_trial(self, trials: Sequence[Trial]) -> bool:
        """Tell whether another trial should end in time. A script that has ended is started for it.

        Raises:
            ScriptError: the script fails before it trains.
        """
        reserve_seconds = self.reserve_seconds(trials)
        if not self.bench.is_live and self.budget.allows(Task.START, reserve_seconds=reserve_seconds):
            with self.budget.timing(Task.START):
                self.bench.detect()
        return self.bench.is_live and self.budget.allows(Task.TRIAL, reserve_seconds=reserve_seconds)


SHARE = 0.9
"""Of memory that is shared with the whole system, so much may be used."""

STEP_BYTES = 64 * MIB
"""More than the bytes by which a kernel's own memory differs between starts."""

SURELY_BEYOND = 1.1
"""A forecast of so many times the room means out of memory; one that is too high by less leaves the trial in."""

RESERVE_BYTES = 512 * MIB
"""Left free on a card: kernels are loaded at their first call, and cuDNN and NCCL ask the driver, not the allocator."""


def choose_limit(detection: Detection, folder: StudyFolder, on_shortage: Callable[[str], None]) -> int:
    """Return the limit that the study was begun with, or for a new study the bytes available now.

    What is free on a card changes from one minute to the next. A study that went on under another limit than it began
    with would be another problem. ``on_shortage`` gets a sentence where less is free than when the study began.
    """
    available = available_bytes(detection)
    limit = folder.head().problem.limit_bytes if folder.exists() else available
    if limit >= available + STEP_BYTES:
        on_shortage(f"warning: {format_bytes(limit - available)} less is free than when the study began")
    return limit


def available_bytes(detection: Detection) -> int:
    """Return the bytes that the peak may reach on this device.

    On a card that is its memory, less what lay outside of the allocator when the script had just put its model there
    (the CUDA context, other processes), less :data:`RESERVE_BYTES`, in whole MiB. On a CPU, and on a card that does not
    tell, it is nine tenths of the memory, in steps that a machine's next start does not change.
    """
    total_bytes = detection.device.total_bytes
    if detection.outside_bytes is None:
        return int(total_bytes * SHARE) // STEP_BYTES * STEP_BYTES
    available = max(total_bytes - detection.outside_bytes - RESERVE_BYTES, 0)
    return available // MIB * MIB


@contextmanager
def device_lock(context: TuningContext) -> Iterator[None]:
    """Hold the device while the context lasts; a wait for it takes no time of the budget."""
    shared = context.shared
    # Workers that share a study need not share a folder.
    purpose = f"study {context.folder.path}" if shared is None else f"study '{shared.name}' in {shared.place}"

    def note_wait(text: str) -> None:
        is_same = shared is not None and f"({purpose})" in text
        context.note(f"{text}{', for this same study: it continues if that one exits' * is_same}")

    with hold_device(context.detection.device, purpose, note_wait):
        yield
