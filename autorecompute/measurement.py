"""The records of a trial: what was predicted and what was measured."""

from __future__ import annotations

import enum
import math
import statistics
from dataclasses import dataclass, replace
from typing import Annotated

from autorecompute.memory import StepProfile
from autorecompute.plans import Config
from autorecompute.ranges import (
    LONGEST_SECONDS,
    NEGLIGIBLE_SHARE,
    PRIVATE,
    AnyBytes,
    Batch,
    Bytes,
    Count,
    Number,
    PositiveBytes,
    PositiveCount,
    Probability,
    Rate,
    Ratio,
    RatioEnd,
    Seconds,
    StepSeconds,
)
from autorecompute.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of a config before its measurement, which lies in the intervals nine times in ten."""

    peak_bytes: Annotated[PositiveBytes, "Expected peak."]
    peak_low: Annotated[AnyBytes, "Lower end of its interval."]
    peak_high: Annotated[AnyBytes, "Upper end of it."]
    step: Annotated[Ratio | None, "Expected step time over the reference's; ``None`` if that was not measured."]
    step_low: Annotated[RatioEnd | None, "Lower end of its interval."]
    step_high: Annotated[RatioEnd | None, "Upper end of it."]
    fits: Annotated[Probability, "Probability that the peak holds the limit."]


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
    """One config's steps on one worker."""

    outcome: Annotated[Outcome, "How it ended."]
    message: Annotated[str, "Why, in words, where it did not end well."] = ""
    trace: Annotated[tuple[str, ...], "Last lines of the script's own traceback, where it raised."] = ()
    peak_bytes: Annotated[
        PositiveBytes | None,
        "Largest memory held in the measured steps: the allocator's reserved peak on CUDA; on a CPU what was held and "
        "live tensors at their most where those are counted, else the resident high-water mark.",
    ] = None
    held_bytes: Annotated[Bytes | None, "Memory held when the measured steps began, counted as ``peak_bytes``."] = None
    before_bytes: Annotated[Bytes, "In a process that is left alone: its peak before its first step; else 0."] = 0
    allocated_bytes: Annotated[Bytes | None, "Peak of live tensors; on a CPU of those that a step made."] = None
    resident_bytes: Annotated[Bytes | None, "Most that the process held, where ``peak_bytes`` is of tensors."] = None
    device_bytes: Annotated[Bytes | None, "CUDA only: memory in use on the whole card, by the driver."] = None
    step_seconds: Annotated[tuple[StepSeconds, ...], "Wall time of each timed step, optimizer step to the next."] = ()
    cpu_seconds: Annotated[tuple[StepSeconds, ...], "Processor time of each timed step; empty on other devices."] = ()
    others_share: Annotated[Probability | None, "Share of its processors that other processes kept busy."] = None
    warmup_seconds: Annotated[Seconds, "Wall time of the steps before them."] = 0.0
    compile_seconds: Annotated[Seconds, "How much of that a compiler took."] = 0.0
    samples: Annotated[PositiveCount | None, "Samples in each timed step, over all its forwards."] = None
    batch: Annotated[Batch | None, "Samples that one forward received."] = None
    losses: Annotated[tuple[float, ...], "Loss of each timed step; empty where ``backward`` had no scalar."] = ()
    warnings: Annotated[tuple[str, ...], "Lines of the script that recompute does not bear, in words."] = ()
    retries: Annotated[Count | None, "CUDA only: how often the allocator freed all its blocks for a request."] = None
    marks: Annotated[tuple[str, ...], "Other events that a reader of the figures should know, in words."] = ()
    is_over_batch: Annotated[bool, "Whether the loss is one of the whole batch; ``False`` where nobody asked."] = False
    profile: Annotated[StepProfile | None, "The last timed step, where asked for; steps are slower for it."] = None

    def __post_init__(self) -> None:
        if self.outcome.is_measured and (self.peak_bytes is None or self.samples is None or not self.step_seconds):
            raise ValueError(f"is {self.outcome} without a peak, samples or step times")
        if math.fsum(self.step_seconds) > LONGEST_SECONDS:
            raise ValueError(f"took more than {LONGEST_SECONDS:.0f} s")

    @property
    def median_step_seconds(self) -> float | None:
        """Return the median wall time of a timed step; ``None`` where no step was timed."""
        return statistics.median(self.step_seconds) if self.step_seconds else None

    @property
    def median_cpu_seconds(self) -> float | None:
        """Return the median processor time of a timed step; ``None`` where it was not counted."""
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
        """Return the throughput of the median step; ``None`` where no step was timed."""
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
    """A config's gradients beside those without recompute, on the same weights, batch and Dropout masks."""

    agrees: Annotated[bool, "Whether they are equal, bit for bit or within the tolerance of their type."]
    worst: Annotated[float, "Largest difference relative to its parameter's largest gradient; 0 where all bits agree."]
    parameter: Annotated[str, "The parameter of the largest difference where they do not agree."] = ""
    steps: Annotated[Count, "How many steps were compared."]
    message: Annotated[str, "What else speaks against the config, in words."] = ""
    step_bytes: Annotated[Bytes | None, "Bytes that a whole step adds on fake tensors; ``None`` without one."] = None
    fragmented_bytes: Annotated[
        Bytes | None, "Bytes that a card's allocator then reserves beyond its tensors; ``None`` if unknown.", PRIVATE
    ] = None


UNCOMPARED = GradientCheck(agrees=True, worst=0.0, steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One config as measured in a study."""

    number: Annotated[Number, "Position in the study, from 0."]
    config: Annotated[Config, "What was recomputed."]
    description: Annotated[str, "The same in a few words."]
    reason: Annotated[str, "Why the search wanted it, in words."]
    measurement: Annotated[Measurement, "What came of it."]
    reference_seconds: Annotated[StepSeconds | None, "Median step of the reference in those minutes, if any."] = None
    reference_cpu_seconds: Annotated[StepSeconds | None, "The same in processor time, if that was counted."] = None
    is_reference_disturbed: Annotated[bool, "Whether other processes disturbed the reference."] = False
    overhead_seconds: Annotated[Seconds | None, "Wall time of the trial beyond its warm-up and timed steps."] = None
    prediction: Annotated[Prediction | None, "What the search expected of it; ``None`` where it could not tell."] = None

    @property
    def hash(self) -> Annotated[str, "Twelve hexadecimal digits, the same for equal configs."]:
        """Return the hash of its config."""
        return self.config.hash

    @property
    def samples_per_second(self) -> Annotated[Rate | None, "Throughput of the median step, if one was timed."]:
        """Return the throughput of the median step."""
        return self.measurement.samples_per_second

    @property
    def relative_throughput(self) -> Annotated[Ratio | None, "Throughput over the reference's of the same minutes."]:
        """Return the share of the reference's throughput; in processor time where other processes disturbed either."""
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
