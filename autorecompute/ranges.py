"""Marks of fields in records, and types of numbers with the range that :mod:`autorecompute.codec` holds them to.

A plain ``float`` in a record may be anything, NaN included: the loss of a training that diverged, for instance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Range:
    """The least and the largest value that a number may have."""

    least: float
    largest: float

    def __contains__(self, number: float) -> bool:
        return self.least <= number <= self.largest

    def __str__(self) -> str:
        return f"from {self.least} to {self.largest}"


INLINED: Final = object()  # marks a record whose keys stand in the place of its own
PRIVATE: Final = object()  # marks a field that may be stored, and is no key of the documents that verbs print

LARGEST = 1 << 60
"""No memory has more bytes. Sums of a few such numbers are still whole numbers of 64 bits."""

LARGEST_BATCH = (1 << 31) - 1
LONGEST_SECONDS = 1e9  # thirty years

NEGLIGIBLE_SHARE = 0.1
"""Others may keep this share of the processors busy before what was measured on them counts as disturbed."""

SHORTEST_SECONDS = 1e-9  # shortest time of a step: what is divided by it can still be printed

LARGEST_RATIO = LONGEST_SECONDS / SHORTEST_SECONDS
WIDEST = 1e300  # end of an interval from few and noisy values, which is far out

Count = Annotated[int, Range(0, LARGEST)]
PositiveCount = Annotated[int, Range(1, LARGEST)]
Number = Annotated[int, Range(0, (1 << 31) - 1)]  # the number of a trial, or how many there are

Batch = Annotated[int, Range(1, LARGEST_BATCH)]
Bytes = Annotated[int, Range(0, LARGEST)]
PositiveBytes = Annotated[int, Range(1, LARGEST)]
AnyBytes = Annotated[int, Range(-LARGEST, LARGEST)]  # an end of an interval of bytes, which may begin below zero

Seconds = Annotated[float, Range(0, LONGEST_SECONDS)]
StepSeconds = Annotated[float, Range(SHORTEST_SECONDS, LONGEST_SECONDS)]
Rate = Annotated[float, Range(0, LARGEST / SHORTEST_SECONDS)]  # samples a second

Operations = Annotated[float, Range(0, 1e30)]
"""Floating point operations, or bytes that are read and written, of a step of any size."""

Ratio = Annotated[float, Range(0, LARGEST_RATIO)]  # factor of size or speed
RatioEnd = Annotated[float, Range(-WIDEST, WIDEST)]  # an end of a ratio's interval, which may begin below zero

Probability = Annotated[float, Range(0, 1)]


def require_versions(versions: Mapping[str, str], *names: str) -> None:
    """Check that the versions which others ask for are there.

    Raises:
        ValueError: one is missing.
    """
    if missing := [name for name in names if name not in versions]:
        raise ValueError(f"has no version of {', '.join(missing)}")
