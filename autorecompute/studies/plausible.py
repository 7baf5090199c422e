"""Whether the records of an archive belong together: each of them may be sound, and about another study."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.plans import Config
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.verdict import Verdict, judge

if TYPE_CHECKING:
    from autorecompute.plans import Space
    from autorecompute.result import Best, Result
    from autorecompute.studies.problem import Problem


class WrongLineError(ValueError):
    """A line of an archive is not what it should be; the message says what is wrong with it."""


def require_own_choices(config: Config, space: Space) -> None:
    """Check that a config switches on nothing but what the study's model offers.

    Raises:
        WrongLineError: it has another choice.
    """
    if space.is_mix(config) or config in space.opaque_presets.values():
        return
    if strangers := [text for text in config.texts if not space.is_mix(Config.parse([text]))]:
        raise WrongLineError(f"holds the choice '{strangers[0][:80]}', which the study's model does not offer")


def require_confirmed(result: Result, confirmed: list[Best], problem: Problem, space: Space) -> None:
    """Check that the archive has the run that confirmed its answer.

    Raises:
        WrongLineError: it says that the answer was confirmed, and no line before it does.
    """
    if result.best is None or not result.best.confirmed or problem.batch == SEVERAL_BATCHES:
        # What confirmed the answer of several batches is in the studies of each.
        return
    require_own_choices(result.best.config, space)
    # A knob that was kept may have left some of the winner's plans without a node.
    if not result.best.knobs and result.best.config not in {best.config for best in confirmed}:
        raise WrongLineError("holds a config as confirmed that no line before it confirms")


def with_own_verdict(result: Result, problem: Problem) -> Result:
    """Return the answer with the verdict that its comparison bears, whatever rule it was written by.

    That of several batches depends on all of them, and stays.
    """
    if result.best is None or result.best.config.is_none or problem.batch == SEVERAL_BATCHES:
        return result
    if result.comparison is None and result.verdict is Verdict.RECOMPUTE_PAYS:
        return result  # no smaller batch fits: there was nothing to compare
    return replace(result, verdict=judge(result.comparison))
