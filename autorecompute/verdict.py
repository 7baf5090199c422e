"""What a tuning found out about recompute: when a comparison bears a verdict, and the words of it for every output."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from autorecompute.units import format_count

if TYPE_CHECKING:
    from autorecompute.figures import Comparison


class Verdict(enum.StrEnum):
    """What tuning found out about recompute on this problem."""

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


MARGIN = 0.02
"""Throughputs closer than this share are as good as equal."""

LEAST_RATIO = 1 / (1 + MARGIN)
"""Recompute is said not to pay below this: who asked for the batch is not sent back for less than the margin."""


def judge(comparison: Comparison | None, least_ratio: float = LEAST_RATIO) -> Verdict:
    """Return what a comparison says about recompute: undecided unless its whole interval lies on one side.

    Args:
        comparison: Recompute beside none; ``None`` where nothing was compared.
        least_ratio: What the ratio has to reach.
    """
    if comparison is None or comparison.low is None or comparison.high is None:
        return Verdict.UNDECIDED
    if comparison.low >= least_ratio:
        return Verdict.RECOMPUTE_PAYS
    return Verdict.DOES_NOT_PAY if comparison.high < least_ratio else Verdict.UNDECIDED


WORDS = {
    Verdict.RECOMPUTE_PAYS: (
        "recompute pays: the batch fits only with it, and the largest batch that fits without recompute is not more "
        "than 2 % faster"
    ),
    Verdict.NOT_NEEDED: "not needed: the batch fits without recompute",
    Verdict.DOES_NOT_PAY: "does not pay: a smaller batch without recompute gives more samples a second",
    Verdict.NO_FIT: "no fit: no config holds the limit",
}

AMONG_SEVERAL = {
    Verdict.RECOMPUTE_PAYS: (
        "recompute pays: the batch fits only with it, and none of the batches that were measured without recompute is "
        "more than 2 % faster"
    ),
}
"""What is said in another way where several batches were compared."""

BESIDE_OWN = {Verdict.NOT_NEEDED: "not needed: the batch fits with the script's own checkpointing alone"}
"""What is said in another way where the script checkpoints itself."""

NO_ANSWER = "no answer yet: no config was confirmed so far"

WITHOUT_COMPARISON = {
    Verdict.RECOMPUTE_PAYS: "recompute pays: the batch fits only with it, and no smaller one fits without",
    Verdict.DOES_NOT_PAY: "does not pay: no larger batch was made to fit with recompute",
}
"""What bears a verdict where there was nothing to compare."""

NOT_SO_FAR = (
    "does not pay so far: a smaller batch without recompute gives more samples a second than the best found so far"
)
"""What a comparison says where the search for the best did not come to its end."""

GO_ON = "Rerun the command to continue; --timeout gives it more time"

NOT_ALL_BATCHES = f"undecided: this is the best of the batches so far, and not all were compared. {GO_ON}"

TOO_FEW_TRIALS = (
    "undecided: this is the best of the batches so far, and the trials were used up before all were tuned. The same "
    "command goes on with a higher --max-trials"
)

NOT_MEASURED = (
    "undecided: the batch fits only with recompute, and no smaller one was seen to fit without it. Up to three are "
    "tried where --target-batch gives the batch"
)

WHILE_TRAINING = (
    "undecided: found while training, where no smaller batch is tried. 'autorecompute tune SCRIPT --study NAME' "
    "confirms it, and compares it with one where --target-batch gives the batch"
)


def describe_verdict(  # noqa: PLR0913  (all that the words depend on)
    verdict: Verdict | None,
    comparison: Comparison | None,
    *,
    compared: bool,
    is_confirmed: bool,
    is_early: bool,
    is_of_several: bool,
    keeps_own: bool = False,
) -> str:
    """Return what was found out about recompute, and no more than that.

    Args:
        verdict: The verdict; ``None`` without an answer.
        comparison: What bears it; ``None`` where nothing was compared.
        compared: Whether all was done that an answer takes.
        is_confirmed: Whether a fresh process confirmed the answer, as none does that a training found.
        is_early: Whether the search ended before its end.
        is_of_several: Whether several batches were compared.
        keeps_own: Whether the script's own checkpoints were on in all that was measured.
    """
    if verdict is None:
        return NO_ANSWER
    if verdict is Verdict.UNDECIDED and is_of_several and not compared:
        return NOT_ALL_BATCHES if is_early else TOO_FEW_TRIALS
    if verdict is Verdict.UNDECIDED:
        return _describe_undecided(comparison, compared=compared, is_confirmed=is_confirmed)
    if verdict is Verdict.DOES_NOT_PAY and is_early:
        return NOT_SO_FAR
    words = {**WORDS, **(BESIDE_OWN if keeps_own else {})}
    if comparison is None:
        return {**words, **WITHOUT_COMPARISON}[verdict]
    return {**words, **(AMONG_SEVERAL if is_of_several else {})}[verdict]


def _describe_undecided(comparison: Comparison | None, *, compared: bool, is_confirmed: bool) -> str:
    """Return what is not known, and what would decide it."""
    if not is_confirmed:
        return WHILE_TRAINING
    if comparison is None and compared:
        return NOT_MEASURED
    pairs = 0 if comparison is None else comparison.pairs
    about = "undecided: whether recompute is faster than a smaller batch without it"
    if pairs:
        found = f"{about} is within the noise of {format_count(pairs, 'pair')} of fresh processes"
        way_out = "A quiet machine or more --steps decides it: tune again with --fresh --study NAME"
    else:
        found = f"{about} was not compared side by side"
        way_out = ""
    return ". ".join(filter(None, [found, way_out if compared else GO_ON]))
