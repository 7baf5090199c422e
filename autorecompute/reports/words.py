"""Figures and configs in the fewest words that stay true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.result import Verdict

if TYPE_CHECKING:
    from autorecompute.result import Best

VERDICTS = {
    Verdict.RECOMPUTE_PAYS: "recompute pays: the batch fits only with it, and no smaller one without is 2 % faster",
    Verdict.NOT_NEEDED: "not needed: the batch fits without recompute",
    Verdict.DOES_NOT_PAY: "does not pay: a smaller batch without recompute gives more samples a second",
    Verdict.NO_FIT: "no fit: no config holds the limit",
}

MOST_TELLING = 3
"""An interval whose ends are further apart than this tells nothing of a config that recomputes."""


def format_relative(ratio: float | None) -> str:
    """Throughput relative to no recompute, ``0.92x``; a dash where it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def format_spread(best: Best) -> str:
    """Relative throughput with its 95 % interval, ``0.87x (0.85-0.89)``, where it has one that says anything."""
    ratio, low, high = best.relative_throughput, best.relative_low, best.relative_high
    if ratio is None or low is None or high is None:
        return format_relative(ratio)
    if high > MOST_TELLING * low:
        return f"{format_relative(ratio)} (noisy)"
    return f"{format_relative(ratio)} ({low:.2f}-{high:.2f})"


def format_rate(samples_per_second: float | None) -> str:
    """``51.3 samples/s``; a dash where it was not measured."""
    return "-" if samples_per_second is None else f"{samples_per_second:.1f} samples/s"


def shorten(text: str, width: int) -> str:
    """The text, cut in its middle to the width: a config's name tells most at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
