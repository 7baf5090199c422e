"""Figures and configs in the fewest words that stay true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.result import SearchEnd

if TYPE_CHECKING:
    from autorecompute.result import Result

EARLY_ENDS = {
    SearchEnd.TIME: "the time is over",
    SearchEnd.INTERRUPTED: "interrupted",
    SearchEnd.TRAINING: "the training ended, or had no steps left for trials",
}


def describe_early_end(result: Result) -> str:
    """Return that there is more to be found, and how; empty where there is not."""
    if not result.search_end.is_early or result.best is None:
        return ""
    why = EARLY_ENDS[result.search_end]
    best = (
        "the best that was confirmed"
        if result.best.confirmed
        else "the fastest so far, and no process has confirmed it"
    )
    return f"{why}: this is {best}; rerun the command to continue"


def shorten(text: str, width: int) -> str:
    """Return the text, cut in its middle to the width: a config's name tells most at both ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"
