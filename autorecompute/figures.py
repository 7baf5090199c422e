"""What was measured, in figures: of a config, of recompute beside none, of a batch, of a knob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.ranges import Batch, Count, PositiveBytes, Rate, Ratio, RatioEnd
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_TELLING = 3
"""An interval of a relative throughput whose ends are further apart than this tells nothing."""


def format_relative(ratio: float | None) -> str:
    """Throughput relative to no recompute, ``0.92x``; a dash where it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def format_interval(low: float, high: float) -> str:
    """``0.85-0.89``, or that it says nothing."""
    return f"{low:.2f}-{high:.2f}" if high <= MOST_TELLING * low else "noisy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A config's outcome, peak and throughput; ``None`` where it was not measured.

    Attributes:
        outcome: How it ended.
        samples_per_second: Throughput of the median step.
        relative_throughput: Throughput relative to that without recompute in the same minutes.
        peak_bytes: Peak, in the measure that the limit is held against.
        batch: Samples that one forward received.
    """

    outcome: Outcome | None = None
    samples_per_second: Rate | None = None
    relative_throughput: Ratio | None = None
    peak_bytes: PositiveBytes | None = None
    batch: Batch | None = None

    @classmethod
    def of(cls, trial: Trial | None) -> Figures:
        """Return the figures of a trial, all ``None`` without one."""
        if trial is None:
            return cls()
        return cls(
            outcome=trial.measurement.outcome,
            samples_per_second=trial.measurement.samples_per_second,
            relative_throughput=trial.relative_throughput,
            peak_bytes=trial.measurement.peak_bytes,
            batch=trial.measurement.batch,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Samples/s with recompute beside those without, each in fresh processes.

    Attributes:
        ratio: Throughput with recompute over that without: above 1, recompute is faster.
        low: Lower end of the 90 % interval of that; ``None`` where one pair was measured.
        high: Upper end of it.
        pairs: How many pairs of processes that ran one right after the other; 0 where those of ``ratio`` did not.
        is_clear: Whether they say on which side of the margin the ratio lies.
    """

    ratio: Ratio
    low: RatioEnd | None = None
    high: RatioEnd | None = None
    pairs: Count
    is_clear: bool

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        spread = "" if self.low is None or self.high is None else f" ({self.low:.2f}-{self.high:.2f})"
        doubt = "" if self.is_clear else ": not sure" if self.pairs == 1 else ": too close to be sure"
        if not self.pairs:
            return f"{self.ratio:.2f}x the samples/s without it, in processes that ran minutes apart: not sure"
        pairs = "1 pair" if self.pairs == 1 else f"{self.pairs} pairs"
        return f"{self.ratio:.2f}x{spread} the samples/s without it, in {pairs} of fresh processes{doubt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """What a batch comes to with recompute.

    Attributes:
        study: The study that tuned it.
        description: The best config in a few words, or that none fits.
        figures: Those of the run that confirmed it; empty where none fits.
        least_peak_bytes: The least peak that any config was seen to have.
        config: What the best one recomputes; ``None`` where none fits.
    """

    study: str
    description: str
    figures: Figures
    least_peak_bytes: PositiveBytes | None = None
    config: Config | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A batch on the curve of throughput against batch.

    Attributes:
        batch: Samples a forward.
        without: Without recompute.
        recomputed: With it; ``None`` where the batch fits without.
    """

    batch: Batch
    without: Figures
    recomputed: Recomputed | None = None

    @property
    def fits_without(self) -> bool:
        """Tell whether the batch trains within the limit without recompute."""
        return self.without.outcome is Outcome.OK

    @property
    def fits_with(self) -> bool:
        """Tell whether a config was confirmed that makes it fit."""
        return self.recomputed is not None and self.recomputed.config is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFigures:
    """What a knob did, beside the winner with the knobs that were kept before it.

    Attributes:
        name: The knob.
        why_not: Why it cannot be tried here, in words; empty where it can.
        outcome: How that ended; ``None`` where it was not tried.
        message: What else there is to say: what failed, or which plans do not exist under it.
        throughput_ratio: Throughput with it over that without; ``None`` where it did not train, as the next three.
        low: Lower end of the 95 % interval of that.
        high: Upper end of it.
        peak_bytes: The larger peak of its processes, over their whole lives.
        base_peak_bytes: The same without it, in the same minutes.
        kept: Whether it is among what to train with.
    """

    name: str
    why_not: str = ""
    outcome: Outcome | None = None
    message: str = ""
    throughput_ratio: Ratio | None = None
    low: RatioEnd | None = None
    high: RatioEnd | None = None
    peak_bytes: PositiveBytes | None = None
    base_peak_bytes: PositiveBytes | None = None
    kept: bool = False

    @property
    def is_open(self) -> bool:
        """Tell whether it can be tried, and not all is known of it."""
        return not self.why_not and self.outcome in {None, Outcome.LOST}

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        if self.outcome is None:
            return f"not tried: {self.why_not}" if self.why_not else "not tried yet"
        if self.throughput_ratio is None or self.low is None or self.high is None:
            return f"{self.outcome}: {self.message}"
        gain = f"{self.throughput_ratio:.2f}x ({format_interval(self.low, self.high)})"
        return "; ".join(filter(None, [gain, self.peak_change, self.message, "kept" if self.kept else ""]))

    @property
    def peak_change(self) -> str:
        """``peak 595 MiB, 12 MiB less``; empty where it was not measured."""
        if self.peak_bytes is None or self.base_peak_bytes is None:
            return ""
        more = self.peak_bytes - self.base_peak_bytes
        return f"peak {format_bytes(self.peak_bytes)}, {format_bytes(abs(more))} {'more' if more > 0 else 'less'}"


def comparable_steps(measurements: Sequence[Measurement]) -> list[float | None]:
    """Return the median steps of several measurements in seconds that can be compared; ``None`` for one without steps.

    Where other processes disturbed any of them, processor time is taken for all, as far as it was counted: it changes
    by a few percent with what others do, and wall time by a factor. Elsewhere wall time is taken.
    """
    timed = [measurement for measurement in measurements if measurement.step_seconds]
    if any(measurement.is_disturbed for measurement in timed) and all(measurement.cpu_seconds for measurement in timed):
        return [measurement.median_cpu_seconds for measurement in measurements]
    return [measurement.median_step_seconds for measurement in measurements]
