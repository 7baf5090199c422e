"""Figures that are compared: steps, intervals, ranks, and the verdict on recompute."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config
from autorecompute.ranges import INLINED, PRIVATE, Batch, Count, PositiveBytes, Probability, Rate, Ratio, RatioEnd
from autorecompute.units import format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence


class RaceEnd(enum.StrEnum):
    """End of a race between the fastest configs."""

    RANKED = "ranked"
    """One is the fastest, or as fast with a lower peak."""
    TIE = "tie"
    """Several are as fast; the lowest peak of them was taken."""
    UNDECIDED = "undecided"
    """Rounds or time were used up before either was sure; the best estimate was taken."""
    ENOUGH = "enough"
    """Further rounds would take more than the training can gain by them; the best estimate was taken."""
    ALONE = "alone"
    """Nobody else was left to compare it with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """End of a race."""

    end: Annotated[RaceEnd, "What it came to."]
    rounds: Annotated[Count, "After how many rounds."]
    disturbed: Annotated[Count, "How many of them were no evidence, because the machine was busy with other work."] = 0
    confidence: Annotated[Probability, "How surely a race that is ranked or tied has no other winner."]
    rivals: Annotated[tuple[str, ...], "Others left, in words, the fastest first: all that tied or might win."] = ()

    def __post_init__(self) -> None:
        if self.end in {RaceEnd.TIE, RaceEnd.UNDECIDED} and not self.rivals:
            raise ValueError(f"ended as {self.end} with nobody else left")

    @property
    def sentence(self) -> str:
        """Return the same in a line."""
        rounds = format_count(self.rounds, "round")
        sureness = f"at {100 * self.confidence:.0f} %"
        others = f" and {format_count(len(self.rivals) - 1, 'other')}" if len(self.rivals) > 1 else ""
        match self.end:
            case RaceEnd.ENOUGH:
                outcome = f"the fastest of {len(self.rivals) + 1} after {rounds}; more rounds would not pay"
            case RaceEnd.ALONE:
                return f"no other one was left in {rounds}"
            case RaceEnd.RANKED:
                outcome = f"ranked {sureness} in {rounds}"
            case RaceEnd.TIE:
                outcome = f"a tie with {self.rivals[0]}{others} {sureness} in {rounds}, given to the lower peak"
            case RaceEnd.UNDECIDED:
                outcome = f"no clear winner {sureness} after {rounds}: {self.rivals[0]}{others} may be as fast"
        if not self.disturbed:
            return outcome
        which = f"{self.disturbed} of {rounds} {'was' if self.disturbed == 1 else 'were'}"
        return f"{outcome}; the machine was busy with other work: {which} disturbed and counted as no evidence"


MOST_TELLING = 3  # an interval of a relative throughput whose ends are further apart than this tells nothing


def format_relative(ratio: float | None) -> str:
    """Return a throughput relative to no recompute, ``0.92x``; a dash where it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def format_interval(low: float, high: float) -> str:
    """Return ``0.85-0.89``, or that it says nothing."""
    return f"{low:.2f}-{high:.2f}" if high <= MOST_TELLING * low else "noisy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A config's outcome, peak and throughput; ``None`` where it was not measured."""

    outcome: Annotated[Outcome | None, "How it ended."] = None
    samples_per_second: Annotated[Rate | None, "Throughput of the median step."] = None
    relative_throughput: Annotated[Ratio | None, "Throughput over that without recompute in the same minutes."] = None
    peak_bytes: Annotated[PositiveBytes | None, "Peak, in the measure that the limit is held against."] = None
    batch: Annotated[Batch | None, "Samples that one forward received."] = None

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
    """Samples/s of the answer beside those of what it is compared with, in one process or each in fresh ones."""

    ratio: Annotated[Ratio, "Throughput of the answer over that of the other: above 1, the answer is faster."]
    low: Annotated[RatioEnd | None, "Lower end of the 90 % interval of that; ``None`` after one pair."] = None
    high: Annotated[RatioEnd | None, "Upper end of it."] = None
    pairs: Annotated[Count, "Pairs measured one right after the other; 0 where those of ``ratio`` were not."]
    is_clear: Annotated[bool, "Whether they say on which side of the margin the ratio lies."]

    @property
    def figure(self) -> str:
        """Return the ratio alone, ``1.31x``; ``~1.31x`` where it is not sure."""
        return f"{'' if self.is_clear else '~'}{self.ratio:.2f}x"

    @property
    def sentence(self) -> str:
        """Return what recompute gives beside none, in a line."""
        return self.beside("the samples/s without it")

    def beside(self, other: str) -> str:
        """Return the same beside something else, in a line."""
        spread = "" if self.low is None or self.high is None else f" ({self.low:.2f}-{self.high:.2f})"
        doubt = "" if self.is_clear else ": not sure" if self.pairs == 1 else ": too close to be sure"
        if not self.pairs:
            return f"{self.ratio:.2f}x {other}, in processes that ran minutes apart: not sure"
        pairs = format_count(self.pairs, "pair")
        return f"{self.ratio:.2f}x{spread} {other}, in {pairs}{doubt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputed:
    """Answer of a batch with recompute."""

    study: Annotated[str, "The study that tuned it."]
    description: Annotated[str, "The best config in a few words, or that none fits."]
    figures: Annotated[Figures, PRIVATE, "Those of the run that confirmed it; empty where none fits."]
    least_peak_bytes: Annotated[PositiveBytes | None, "The least peak that any config was seen to have."] = None
    config: Annotated[Config | None, "What the best one recomputes; ``None`` where none fits."] = None

    @property
    def told_figures(self) -> Annotated[Figures, INLINED]:
        """Return the same: in documents their keys stand beside those of the record."""
        return self.figures


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A batch on the curve of throughput against batch."""

    batch: Annotated[Batch, "Samples a forward."]
    without: Annotated[Figures, "Without recompute."]
    recomputed: Annotated[Recomputed | None, PRIVATE, "With it; ``None`` where the batch fits without."] = None

    @property
    def with_(self) -> Annotated[Recomputed | None, "With it; ``None`` if it fits without, or was not tuned."]:
        """Return the same: ``with`` is its key in documents."""
        return self.recomputed

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
    """Figures of a knob, beside the winner with the knobs that were kept before it."""

    name: Annotated[str, "The knob."]
    why_not: Annotated[str, "Why it cannot be tried here, in words; empty where it can."] = ""
    outcome: Annotated[Outcome | None, "How that ended; ``None`` where it was not tried."] = None
    message: Annotated[str, "What else there is to say: what failed, or which plans do not exist under it."] = ""
    throughput_ratio: Annotated[Ratio | None, "Throughput with it over that without, if it did train."] = None
    low: Annotated[RatioEnd | None, "Lower end of the 95 % interval of that."] = None
    high: Annotated[RatioEnd | None, "Upper end of it."] = None
    peak_bytes: Annotated[PositiveBytes | None, "The larger peak of its processes, over their whole lives."] = None
    base_peak_bytes: Annotated[PositiveBytes | None, "The same without it, in the same minutes."] = None
    kept: Annotated[bool, "Whether it is among what to train with."] = False

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
        change = ""
        if self.peak_bytes is not None and self.base_peak_bytes is not None:
            more = self.peak_bytes - self.base_peak_bytes
            change = f"peak {format_bytes(self.peak_bytes)}, {format_bytes(abs(more))} {'more' if more > 0 else 'less'}"
        gain = f"{self.throughput_ratio:.2f}x ({format_interval(self.low, self.high)})"
        return "; ".join(filter(None, [gain, change, self.message, "kept" if self.kept else ""]))


def place_measured(trials: Sequence[Trial]) -> tuple[list[tuple[int, float, Trial]], bool]:
    """Return peak and throughput of what was measured; the flag tells whether all are relative to no recompute."""
    places = [(trial.measurement.peak_bytes, trial.samples_per_second, trial) for trial in trials]
    known = [(peak, speed, trial) for peak, speed, trial in places if peak and speed]
    relative = [(peak, trial.relative_throughput or 0.0, trial) for peak, _, trial in known]
    is_relative = all(share for _, share, _ in relative)
    return relative if is_relative else known, is_relative


def comparable_steps(measurements: Sequence[Measurement]) -> list[float | None]:
    """Return the median steps of several measurements in seconds that can be compared; ``None`` for one without steps.

    Where other processes disturbed any of them, processor time is taken for all, as far as it was counted: it changes
    by a few percent with what others do, and wall time by a factor. Elsewhere wall time is taken.
    """
    timed = [measurement for measurement in measurements if measurement.step_seconds]
    if any(measurement.is_disturbed for measurement in timed) and all(measurement.cpu_seconds for measurement in timed):
        return [measurement.median_cpu_seconds for measurement in measurements]
    return [measurement.median_step_seconds for measurement in measurements]


class Verdict(enum.StrEnum):
    """Verdict on recompute for a problem."""

    RECOMPUTE_PAYS = "recompute_pays"
    """The batch fits with recompute only, and the largest that fits without is not more than 2 % faster."""
    NOT_NEEDED = "not_needed"
    """The batch fits without recompute."""
    DOES_NOT_PAY = "does_not_pay"
    """A smaller batch without recompute gives more samples a second."""
    UNDECIDED = "undecided"
    """The batch fits with recompute only; whether a smaller batch without it is faster is not known."""
    NO_FIT = "no_fit"
    """No config holds the limit."""


MARGIN = 0.02  # throughputs closer than this share are as good as equal

LEAST_RATIO = 1 / (1 + MARGIN)
"""Recompute is said not to pay below this: who asked for the batch is not sent back for less than the margin."""


def judge(comparison: Comparison | None, least_ratio: float = LEAST_RATIO) -> Verdict:
    """Judge recompute by a comparison beside none: undecided unless its whole interval lies on one side."""
    if comparison is None or comparison.low is None or comparison.high is None:
        return Verdict.UNDECIDED
    if comparison.low >= least_ratio:
        return Verdict.RECOMPUTE_PAYS
    return Verdict.DOES_NOT_PAY if comparison.high < least_ratio else Verdict.UNDECIDED
