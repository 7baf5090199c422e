"""Figures and configs in the fewest words that stay true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.figures import format_interval
from autorecompute.result import SearchEnd, Verdict

if TYPE_CHECKING:
    from autorecompute.result import Best, Result

VERDICTS = {
    Verdict.RECOMPUTE_PAYS: "recompute pays: the batch fits only with it, and no smaller one without is 2 % faster",
    Verdict.NOT_NEEDED: "not needed: the batch fits without recompute",
    Verdict.DOES_NOT_PAY: "does not pay: a smaller batch without recompute gives more samples a second",
    Verdict.NO_FIT: "no fit: no config holds the limit",
}

NO_ANSWER = "no answer yet: no config was confirmed so far"

NOT_COMPARED = "the batch fits with recompute only; not compared with a smaller batch without"

COMPARED_APART = f"{NOT_COMPARED} side by side"

NOT_SO_FAR = (
    "does not pay so far: a smaller batch without recompute gives more samples a second than the best found so far"
)
"""What a comparison says where the search for the best did not come to its end."""

NOT_FOR_SURE = "does not seem to pay: a smaller batch without recompute gives about as many samples a second"

NOT_ALL_BATCHES = "the best of the batches so far; what recompute gives at the others is not known yet"


def describe_verdict(result: Result) -> str:
    """What was found out about recompute, and no more than that."""
    if result.verdict is None:
        return NO_ANSWER
    if result.curve and result.best is not None and not result.compared:
        return NOT_ALL_BATCHES
    doubt = {Verdict.RECOMPUTE_PAYS: _doubt_that_it_pays, Verdict.DOES_NOT_PAY: _doubt_that_it_does_not}
    known = doubt[result.verdict](result) if result.verdict in doubt else None
    return known or VERDICTS[result.verdict]


def _doubt_that_it_pays(result: Result) -> str | None:
    if not result.compared:
        return NOT_COMPARED
    if result.comparison is not None and not result.comparison.pairs:
        return COMPARED_APART
    return result.unrivalled


def _doubt_that_it_does_not(result: Result) -> str | None:
    if result.search_end.is_early:
        return NOT_SO_FAR
    is_close = result.comparison is not None and not result.comparison.is_clear
    return NOT_FOR_SURE if is_close else None


def describe_early_end(result: Result) -> str:
    """That there is more to be found, and how; empty where there is not."""
    if not result.search_end.is_early or result.best is None:
        return ""
    why = "interrupted" if result.search_end is SearchEnd.INTERRUPTED else "the time is over"
    return f"{why}: this is the best that was confirmed; the same command goes on from there"


def format_relative(ratio: float | None) -> str:
    """Throughput relative to no recompute, ``0.92x``; a dash where it was not measured."""
    return "-" if ratio is None else f"{ratio:.2f}x"


def format_spread(best: Best) -> str:
    """Relative throughput with its 95 % interval, ``0.87x (0.85-0.89)``, where it has one that says anything."""
    ratio, low, high = best.relative_throughput, best.relative_low, best.relative_high
    if ratio is None or low is None or high is None:
        return format_relative(ratio)
    return f"{format_relative(ratio)} ({format_interval(low, high)})"


def format_rate(samples_per_second: float | None) -> str:
    """``51.3 samples/s``; a dash where it was not measured."""
    return "-" if samples_per_second is None else f"{samples_per_second:.1f} samples/s"


def shorten(text: str, width: int) -> str:
    """The text, cut in its middle to the width: a config's name tells most at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
