"""The records of a trial: what was predicted and what was measured."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, replace

from autorecompute.memory import StepProfile
from autorecompute.plans import Config
from autorecompute.ranges import (
    LONGEST_SECONDS,
    NEGLIGIBLE_SHARE,
    AnyBytes,
    Batch,
    Bytes,
    Count,
    Number,
    PositiveBytes,
    PositiveCount,
    Probability,
    Ratio,
    RatioEnd,
    Seconds,
    StepSeconds,
)
from autorecompute.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of a config before its measurement, which lies in the intervals nine times in ten.

    Attributes:
        peak_bytes: Expected peak.
        peak_low: Lower end of its interval.
        peak_high: Upper end of it.
        step: Expected step time, relative to the reference's; ``None`` where that could not be measured.
        step_low: Lower end of its interval.
        step_high: Upper end of it.
        fits: Probability that the peak holds the limit.
    """

    peak_bytes: PositiveBytes
    peak_low: AnyBytes
    peak_high: AnyBytes
    step: Ratio | None
    step_low: RatioEnd | None
    step_high: RatioEnd | None
    fits: Probability


class Outcome(enum.StrEnum):
    """Outcome of a trial."""

    OK = "ok"
    """Measured, and within the memory limit."""
    OVER_LIMIT = "over_limit"
    """Measured, with a peak above the memory limit."""
    OOM = "oom"
    """An allocation failed, or the kernel ended the process for want of memory."""
    TIMEOUT = "timeout"
    """The steps took longer than a trial is given."""
    HANG = "hang"
    """No step ended for long; the stacks of all threads are in the worker's log."""
    CRASH = "crash"
    """The process died of a signal."""
    SCRIPT_ERROR = "script_error"
    """The script raised, or ended before enough steps."""
    EXPORT_ERROR = "export_error"
    """The training system cannot take the model."""
    FELL_BACK = "fell_back"
    """The script went on without the training system, and nothing is recomputed."""
    WRONG_BATCH = "wrong_batch"
    """The model received another batch than the target."""
    DIVERGED = "diverged"
    """The loss is no finite number."""
    WRONG_GRADIENT = "wrong_gradient"
    """The gradients differ from those without recompute."""
    WRONG_LOSS = "wrong_loss"
    """The loss differs from that without the knob that was turned."""
    LOST = "lost"
    """The machine, the tuner or the worker was taken away meanwhile; tried once more."""

    @property
    def is_measured(self) -> bool:
        """Tell whether the trial has a peak and step times."""
        return self in {Outcome.OK, Outcome.OVER_LIMIT}

    @property
    def is_about_memory(self) -> bool:
        """Tell whether the config, rather than the script or the machine, needs too much memory."""
        return self in {Outcome.OVER_LIMIT, Outcome.OOM}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One config's steps on one worker.

    Attributes:
        outcome: How it ended.
        message: Why, in words, where it did not end well.
        trace: Last lines of the script's own traceback, where it raised.
        peak_bytes: Largest memory held in the measured steps: the allocator's reserved peak on CUDA; on a CPU what was
            held and live tensors at their most where those are counted, else the resident high-water mark.
        held_bytes: What was held between two steps, in the measure of ``peak_bytes``, when the measured ones began.
        before_bytes: In a process that is left alone: its peak before its first step; else 0.
        allocated_bytes: The peak of live tensors: of all on CUDA, on a CPU of what a step made; ``None`` if unknown.
        resident_bytes: What the process held at most in the timed steps, where ``peak_bytes`` counts live tensors.
        device_bytes: CUDA only: memory in use on the whole card after the timed steps, as the driver counts it.
        step_seconds: Wall time of each timed step, from one optimizer step's end to the next one's.
        cpu_seconds: Processor time of all threads in each timed step; empty where another device does the work.
        others_share: Which share of its processors other processes kept busy meanwhile; ``None`` if unknown.
        warmup_seconds: Wall time of the steps before them.
        compile_seconds: How much of that a compiler took.
        samples: Samples in each timed step, over all its forwards.
        batch: Samples that one forward received.
        losses: Value that ``backward`` was called on, one for each timed step; empty where it was no scalar.
        warnings: What the script does that recompute does not bear, a sentence for each of its lines.
        retries: CUDA only: how often the allocator had to give all its free blocks back before a request could be met.
        marks: What else happened meanwhile that a reader of the figures should know, in words.
        profile: What the last timed step held and when, where that was asked for; its steps are slower for it.
    """

    outcome: Outcome
    message: str = ""
    trace: tuple[str, ...] = ()
    peak_bytes: PositiveBytes | None = None
    held_bytes: Bytes | None = None
    before_bytes: Bytes = 0
    allocated_bytes: Bytes | None = None
    resident_bytes: Bytes | None = None
    device_bytes: Bytes | None = None
    step_seconds: tuple[StepSeconds, ...] = ()
    cpu_seconds: tuple[StepSeconds, ...] = ()
    others_share: Probability | None = None
    warmup_seconds: Seconds = 0.0
    compile_seconds: Seconds = 0.0
    samples: PositiveCount | None = None
    batch: Batch | None = None
    losses: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    retries: Count | None = None
    marks: tuple[str, ...] = ()
    profile: StepProfile | None = None

    def __post_init__(self) -> None:
        if self.outcome.is_measured and (self.peak_bytes is None or self.samples is None or not self.step_seconds):
            raise ValueError(f"is {self.outcome} without a peak, samples or step times")
        if math.fsum(self.step_seconds) > LONGEST_SECONDS:
            raise ValueError(f"took more than {LONGEST_SECONDS:.0f} s")

    @property
    def median_step_seconds(self) -> float | None:
        """Median wall time of a timed step; ``None`` where no step was timed."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def median_cpu_seconds(self) -> float | None:
        """Median processor time of a timed step; ``None`` where it was not counted."""
        return statistics.median(self.cpu_seconds) if self.cpu_seconds else None

    @property
    def untold_bytes(self) -> int:
        """Return the bytes beyond live tensors: gaps between them, and the memory of kernels."""
        return max(0, (self.resident_bytes or 0) - (self.peak_bytes or 0))

    @property
    def is_disturbed(self) -> bool:
        """Tell whether other processes took so much of the processors that wall times say little."""
        return bool(self.cpu_seconds) and (self.others_share or 0.0) > NEGLIGIBLE_SHARE

    @property
    def samples_per_second(self) -> float | None:
        """Throughput of the median step; ``None`` where no step was timed."""
        median = self.median_step_seconds
        return self.samples / median if median and self.samples else None

    def under(self, limit_bytes: float) -> Measurement:
        """Return the same steps under another limit. Only their outcome changes, and only where they were measured."""
        excess_bytes = (self.peak_bytes or 0) - limit_bytes
        outcome, message = Outcome.OK, ""
        if excess_bytes > 0:
            outcome, message = Outcome.OVER_LIMIT, f"{format_bytes(round(excess_bytes))} over the limit"
        if outcome is self.outcome or not self.outcome.is_measured:
            return self
        return replace(self, outcome=outcome, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCheck:
    """A config's gradients beside those without recompute, on the same weights, batch and Dropout masks.

    Attributes:
        agrees: Whether they are equal, bit for bit or within the tolerance of their type.
        worst: Largest difference, relative to the largest gradient of its parameter; 0 where all bits agree.
        parameter: The parameter of the largest difference where they do not agree.
        steps: How many steps were compared.
        message: What else speaks against the config, in words.
        step_bytes: What a whole step takes on fake tensors beyond what is there before; ``None`` where none was run.
    """

    agrees: bool
    worst: float
    parameter: str = ""
    steps: Count
    message: str = ""
    step_bytes: Bytes | None = None


UNCOMPARED = GradientCheck(agrees=True, worst=0.0, steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One config as measured in a study.

    Attributes:
        number: Position in the study, from 0.
        config: What was recomputed.
        description: The same in a few words.
        reason: Why the search wanted it, in words.
        measurement: What came of it.
        reference_seconds: Median step of the reference, measured in the same minutes; ``None`` where it could not run.
        reference_cpu_seconds: The same in processor time; ``None`` where that was not counted.
        is_reference_disturbed: Whether other processes disturbed the reference.
        overhead_seconds: Wall time of the trial beyond its warm-up and timed steps.
        prediction: What the search expected of it; ``None`` where it could not tell.
    """

    number: Number
    config: Config
    description: str
    reason: str
    measurement: Measurement
    reference_seconds: StepSeconds | None = None
    reference_cpu_seconds: StepSeconds | None = None
    is_reference_disturbed: bool = False
    overhead_seconds: Seconds | None = None
    prediction: Prediction | None = None

    @property
    def relative_throughput(self) -> float | None:
        """Throughput as a share of the reference's then; in processor time where other processes disturbed either."""
        if self.is_reference_disturbed or self.measurement.is_disturbed:
            reference, own = self.reference_cpu_seconds, self.measurement.median_cpu_seconds
        else:
            reference, own = self.reference_seconds, self.measurement.median_step_seconds
        return reference / own if reference and own else None

    @property
    def fits(self) -> bool:
        """Tell whether it ran within the limit."""
        return self.measurement.outcome is Outcome.OK

    def under(self, limit_bytes: float) -> Trial:
        """Return the trial as it would be under another limit: ``trial.under(limit_bytes).fits``."""
        return replace(self, measurement=self.measurement.under(limit_bytes))
