"""The steps of greedy search: the configs it can reach from one that was tried."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.plans import Config, Plan, Space
    from autorecompute.search.peaks import PeakModel
    from autorecompute.search.times import TimeModel

LEAST_COST = 0.002
"""No plan counts as cheaper than this share of a step when its saving is weighed against its time."""


def moves_from(base: Config, space: Space, times: TimeModel, peaks: PeakModel) -> Iterator[Config]:
    """Yield one plan on or off, and several at once towards the limit; nothing where the peak is unknown."""
    spare_bytes = peaks.spare_bytes(base)
    if spare_bytes is None:
        return
    on = [plan for plan in space.plans if base.has(plan)]
    off = [plan for plan in space.plans if not base.has(plan)]
    savings = {plan: peaks.saving_bytes(plan, base) for plan in space.plans}
    worth = {plan: savings[plan] / max(times.cost(plan), LEAST_COST) for plan in space.plans}
    yield from (base.without_plan(plan) for plan in on)
    yield from (space.with_plan(base, plan) for plan in off)
    if spare_bytes < 0:
        yield from _grow(space, base, sorted(off, key=worth.__getitem__, reverse=True), savings, -spare_bytes)
    else:
        costly = [plan for plan in on if times.cost(plan) > 0]
        yield from _prune(space, base, sorted(costly, key=worth.__getitem__), savings, spare_bytes)


def _grow(
    space: Space, config: Config, plans: list[Plan], savings: dict[Plan, int], missing_bytes: int
) -> Iterator[Config]:
    """Plan after plan on, until the config should fit; the last one at no more occurrences than that takes."""
    for plan in plans:
        if plan.counts and savings[plan] > missing_bytes:
            yield space.with_plan(config, plan, math.ceil(plan.occurrences * missing_bytes / savings[plan]))
        config = space.with_plan(config, plan)
        yield config
        missing_bytes -= savings[plan]
        if missing_bytes <= 0:
            return


def _prune(
    space: Space, config: Config, plans: list[Plan], savings: dict[Plan, int], spare_bytes: int
) -> Iterator[Config]:
    """Plan after plan off, leaving on those without which the config should no longer fit, or as many as that takes."""
    for plan in plans:
        if savings[plan] * space.share(config, plan) <= spare_bytes:
            spare_bytes -= round(savings[plan] * space.share(config, plan))
            config = config.without_plan(plan)
            yield config
        elif plan.counts and (spare := plan.occurrences * spare_bytes // savings[plan]):
            yield space.with_plan(config, plan, config.count_of(plan) - spare)
