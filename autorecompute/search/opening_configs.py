"""What is measured in every study, whatever comes of it: presets, each plan alone, all but each."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search.searcher import Proposal, preset_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Plan, Space

WHOLE_SHARE = 0.7
"""An opening within this share of the budget is gone through as a whole."""

CUT_SHARE = 2 / 3
"""A longer one is cut down to this share, so that a third of the budget is left to use what it told."""

FAILURES_THAT_TELL = 3
"""After so many plans alone that ran out of memory, and none that did not, the rest would tell as little."""


class Opening:
    """The first trials of a study.

    The plans come in the order of their stated savings. A training system may state too little, so a small saving puts
    a plan at the end and never leaves it out.

    Args:
        space: The plans worth a trial.
        presets: What a user could switch on without measuring.
        budget: How many trials the study may have.

    Attributes:
        whole: All that an opening can hold.
    """

    def __init__(self, space: Space, presets: Iterable[Config], budget: int) -> None:
        plans = sorted(space.plans, key=_stated_saving, reverse=True)
        all_on = space.all_on
        self._budget = budget
        reasons = {**{preset: preset_reason(preset) for preset in presets}, all_on: "all at once"}
        self._presets = [Proposal(config=config, reason=reason) for config, reason in reasons.items()]
        self._alone = [Proposal(config=Config.of([plan]), reason=f"{plan.label} alone") for plan in plans]
        self._all_but = [
            Proposal(config=all_on.without_plan(plan), reason=f"all but {plan.label}")
            for plan in plans
            if all_on.has(plan)
        ]
        self.whole = [*self._presets, *self._alone, *self._all_but]

    def proposals(self, trials: Sequence[Trial]) -> list[Proposal]:
        """Return the opening of a study that has come to these trials, with what they have of it."""
        alone = [] if self._tell_nothing_alone(trials) else self._alone
        proposals = [*self._presets, *alone, *self._all_but]
        if len(proposals) <= round(self._budget * WHOLE_SHARE):
            return proposals
        # In turns, because it takes both: what a plan saves by itself, and which plan breaks the chain of recompute.
        in_turns = chain.from_iterable(zip(alone, self._all_but, strict=False)) if alone else self._all_but
        return [*self._presets, *in_turns][: round(self._budget * CUT_SHARE)]

    def count_others_after(self, trial: Trial, trials: Sequence[Trial]) -> int:
        """Return how many trials came after this one that are not of the opening."""
        configs = {proposal.config for proposal in self.whole}
        return sum(other.number > trial.number and other.config not in configs for other in trials)

    def _tell_nothing_alone(self, trials: Sequence[Trial]) -> bool:
        configs = {proposal.config for proposal in self._alone}
        outcomes = [trial.measurement.outcome for trial in trials if trial.config in configs]
        is_any_measured = any(outcome.is_measured for outcome in outcomes)
        return outcomes.count(Outcome.OOM) >= FAILURES_THAT_TELL and not is_any_measured


def _stated_saving(plan: Plan) -> int:
    return plan.saving_bytes or 0
