"""Compares two setups in alternating fresh processes, so that the machine's weather cancels."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.errors import SetupError
from autorecompute.knobs import KnobComparison, Setup
from autorecompute.measurement import Measurement, Outcome
from autorecompute.tuning.answer.intervals import interval
from autorecompute.tuning.budget import Task
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Pair = tuple[Measurement, Measurement]

MARGIN = 0.02
"""A setup must be faster by more than this share."""

ROUNDS = 3
"""Two pairs each. A setup that looks faster is measured again until that is sure, and so is one whose pairs contradict
each other, until these are over."""

AGREEMENT = 0.1
"""Pairs agree whose ratios differ by no more than this share."""

SIDE_BY_SIDE = (Task.CONFIRMATION,) * 4
"""What two pairs take."""

MISS = 0.025
"""Chance that the gain lies below its interval, and the same again that it lies above."""

LOSS_TOLERANCE = 0.05
"""Losses of the same steps may differ by this share beyond what the base's own processes differ. Where a graph becomes
another one its Dropouts draw other masks, which alone moved the loss of a small transformer by one percent."""


class Gain(NamedTuple):
    """Throughput over that of the base, with its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def is_worth_it(self) -> bool:
        """Whether the setup is faster for sure, and by more than a little."""
        return self.ratio > 1 + MARGIN and self.low > 1


def compare(  # noqa: PLR0913  (what is compared, and how far)
    run: Callable[[Setup], Measurement],
    knob: str,
    base: Setup,
    other: Setup,
    limit_bytes: int,
    *,
    has_time: Callable[[], bool] = lambda: True,
) -> KnobComparison:
    """Measures base, other, other, base, in a fresh process each; again where the other one looks faster.

    Args:
        run: Measures a setup in a fresh process.
        knob: What was turned.
        base: A setup that was confirmed.
        other: Whatever may become of it.
        limit_bytes: What its peak may reach.
        has_time: Whether there is time for two further pairs.
    """
    pairs: list[Pair] = []
    for number in range(2 * ROUNDS):
        pair = _run_pair(run, base, other, is_base_first=number % 2 == 0)
        outcome, message = _judge([*pairs, pair], limit_bytes)
        if outcome is not Outcome.OK:
            return KnobComparison(
                knob=knob, base=base.key, setup=other, outcome=outcome, message=message, pairs=(*pairs, pair)
            )
        pairs.append(pair)
        if number % 2 == 1 and (_is_settled(pairs) or not has_time()):
            break
    return KnobComparison(knob=knob, base=base.key, setup=other, pairs=tuple(pairs))


def gain_of(pairs: Sequence[Pair]) -> Gain:
    """What the second of each pair gains, over at least one pair whose processes all trained."""
    found = interval([_log_ratio(pair) for pair in pairs], MISS)
    return Gain(*(math.exp(value) for value in (found.middle, found.low, found.high)))


def is_worth_it(comparison: KnobComparison) -> bool:
    """Whether to train with the setup."""
    return comparison.outcome is Outcome.OK and gain_of(comparison.pairs).is_worth_it


def highest_peak(measurements: Sequence[Measurement]) -> int | None:
    """The largest of their peaks; ``None`` where none was measured."""
    return max((peak for item in measurements if (peak := item.peak_bytes) is not None), default=None)


def _is_settled(pairs: Sequence[Pair]) -> bool:
    gain, ratios = gain_of(pairs), [_log_ratio(pair) for pair in pairs]
    is_alike = max(ratios) - min(ratios) <= math.log1p(AGREEMENT)
    return gain.low > 1 or (gain.ratio <= 1 + MARGIN and is_alike)


def _run_pair(run: Callable[[Setup], Measurement], base: Setup, other: Setup, *, is_base_first: bool) -> Pair:
    if is_base_first:
        return run(base), run_guarded(run, other)
    second = run_guarded(run, other)
    return run(base), second


def run_guarded(run: Callable[[Setup], Measurement], setup: Setup) -> Measurement:
    """The measurement of a setup that may keep the installation from working."""
    try:
        return run(setup)
    except SetupError as error:
        return Measurement(outcome=Outcome.SCRIPT_ERROR, message=str(error))


def _judge(pairs: Sequence[Pair], limit_bytes: int) -> tuple[Outcome, str]:
    base, other = pairs[-1]
    if other.outcome is not Outcome.OK:
        return other.outcome, other.message
    if other.peak_bytes is not None and other.peak_bytes > limit_bytes:
        return Outcome.OVER_LIMIT, f"{format_bytes(other.peak_bytes - limit_bytes)} over the limit"
    if not base.step_seconds:
        # Nothing is known of the setup, and the machine that took the base may be back the next time.
        return Outcome.LOST, f"what it was to be compared with ended as {base.outcome}: {base.message}"
    # One run of the base tells nothing of how far its losses scatter.
    return _compare_losses(pairs) if len(pairs) > 1 else (Outcome.OK, "")


def _compare_losses(pairs: Sequence[Pair]) -> tuple[Outcome, str]:
    bases, others = ([_mean_loss(measurement) for measurement in side] for side in zip(*pairs, strict=True))
    known = [loss for loss in bases if loss is not None]
    if not known:
        return Outcome.OK, ""
    expected, allowed = statistics.fmean(known), max(known) - min(known)
    allowed += LOSS_TOLERANCE * abs(expected)
    for loss in others:
        if loss is None or abs(loss - expected) > allowed:
            return Outcome.WRONG_LOSS, f"its loss is {loss} where that without it is {expected:.6g}"
    return Outcome.OK, ""


def _mean_loss(measurement: Measurement) -> float | None:
    return statistics.fmean(measurement.losses) if measurement.losses else None


def _log_ratio(pair: Pair) -> float:
    base, other = (measurement.median_step_seconds for measurement in pair)
    assert base, "the base trained"
    assert other, "so did the other setup"
    return math.log(base / other)
