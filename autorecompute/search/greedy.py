"""A simple search: a fixed opening, then one measured step after another from whatever was tried."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

from autorecompute.search.costs import TrialCosts, needs_nothing
from autorecompute.search.moves import moves_from
from autorecompute.search.opening_configs import Opening
from autorecompute.search.peaks import PeakModel
from autorecompute.search.searcher import Proposal
from autorecompute.search.soundness import sound_space
from autorecompute.search.times import TimeModel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Plan, Space
    from autorecompute.search.costs import Needs

NOISE = 0.01
"""A gain below this share of the step time is not worth a trial: it could not be told from noise."""

FEW_PLANS = 2
"""Up to so many plans are named in a reason."""


class GreedySearcher:
    """Grows and prunes what was tried towards the fastest config within the limit.

    Every step is measured and the next one starts from what was measured, so that a wrong forecast costs one trial. The
    search ends when no config that should fit should also be faster, and as many tries against the odds as there are
    plans have gained nothing.

    Args:
        space: The plans.
        budget: How many trials the study may have; the caller counts them, here it bounds the opening.
        limit_bytes: The memory limit.
        needs: What each config has to have made ready.
    """

    def __init__(self, space: Space, *, budget: int, limit_bytes: int, needs: Needs = needs_nothing) -> None:
        self._space, self._budget, self._limit_bytes, self._needs = space, budget, limit_bytes, needs

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure.

        ``None`` when the batch fits without recompute, or nothing is left to gain.
        """
        if any(trial.config.is_none and trial.fits for trial in trials):
            return None
        tried = {config.hash for config in (*claimed, *(trial.config for trial in trials))}
        space = sound_space(self._space, trials)
        opening = Opening(space, self._space.presets.values(), self._budget)
        # What the opening left out comes last: it may still tell something where no step looks worth a trial.
        proposals = chain(opening.proposals(trials), self._steps(space, opening, trials), opening.whole)
        return next((proposal for proposal in proposals if proposal.config.hash not in tried), None)

    @staticmethod
    def predict(config: Config, trials: Sequence[Trial]) -> None:
        """Return nothing: its sums have no interval."""
        del config, trials

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return what a sum of plans says, and never less than was measured."""
        times = TimeModel(self._space, trials)
        return {trial.number: times.expected(trial) for trial in trials if trial.measurement.step_seconds}

    def _steps(self, space: Space, opening: Opening, trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Untried configs that should be faster: those that should fit, which gain most for their trial's time first.

        The others follow by their peak.
        """
        times, peaks = TimeModel(space, trials), PeakModel(space, trials, self._limit_bytes)
        best = min((trial for trial in trials if trial.fits), key=times.expected, default=None)
        time_to_beat = times.expected(best) * (1 - NOISE) if best else math.inf
        bases = _bases(space, trials, times, peaks)
        excess = {c: peaks.excess_bytes(c) for c in bases if times.forecast(c) < time_to_beat}
        has_patience = best is None or opening.count_others_after(best, trials) < len(space.plans)
        # Where nothing fits yet, anything that does is a gain, the faster the better.
        slowest = 1 + max(map(times.forecast, excess), default=0.0)
        costs = TrialCosts(trials, self._needs)
        gains = {c: (min(time_to_beat, slowest) - times.forecast(c)) / costs.relative(c) for c in excess}
        for config in sorted(excess, key=lambda config: (excess[config], -gains[config], config.hash)):
            if has_patience or not excess[config]:
                yield Proposal(config=config, reason=_in_words(space, bases[config], config))


def _bases(space: Space, trials: Sequence[Trial], times: TimeModel, peaks: PeakModel) -> dict[Config, Trial]:
    """Return the configs a step away from the trials, each with the first trial it is a step away from."""
    bases: dict[Config, Trial] = {}
    for trial in trials:
        for config in moves_from(trial.config, space, times, peaks):
            bases.setdefault(config, trial)
    return bases


def _in_words(space: Space, base: Trial, config: Config) -> str:
    before, after = space.plans_of(base.config), space.plans_of(config)
    gained = _listed("with", [plan for plan in after if plan not in before])
    lost = _listed("without", [plan for plan in before if plan not in after])
    return f"trial {base.number}{gained}{lost}"


def _listed(word: str, plans: Sequence[Plan]) -> str:
    if not plans:
        return ""
    names = " and ".join(plan.label for plan in plans) if len(plans) <= FEW_PLANS else f"{len(plans)} plans"
    return f" {word} {names}"
