"""What the search expects of a config before it is measured."""

from __future__ import annotations

from dataclasses import dataclass

from autorecompute.ranges import AnyBytes, PositiveBytes, Probability, Ratio, RatioEnd


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What was expected of a config before it was measured. One measurement lies in the intervals nine times in ten.

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
