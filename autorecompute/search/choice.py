"""The searchers by the names that ``--sampler`` has for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.search.costs import needs_nothing
from autorecompute.search.greedy import GreedySearcher
from autorecompute.search.model_searcher import ModelSearcher
from autorecompute.search.sampling import SAMPLERS, OptunaSearcher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import PeakForecaster
    from autorecompute.plans import Space
    from autorecompute.search.costs import Needs
    from autorecompute.search.searcher import Searcher

MODEL = "model"
GREEDY = "greedy"
NAMES = (MODEL, GREEDY, *SAMPLERS)


def make_searcher(  # noqa: PLR0913  (what any of them may want to know)
    name: str,
    space: Space,
    *,
    budget: int,
    limit_bytes: int,
    memory: PeakForecaster | None = None,
    dims: Mapping[str, int] | None = None,
    prior: Sequence[Trial] = (),
    needs: Needs = needs_nothing,
    known_trials: int = 0,
) -> Searcher:
    """Return the searcher of that name, one of ``NAMES``; the greedy one where there is nothing to make a model of.

    Args:
        name: Which.
        space: The plans.
        budget: How many trials the study may have.
        limit_bytes: The memory limit.
        memory: A model of memory, made from small steps; ``None`` where there is none.
        dims: The dimensions of a step at the target batch.
        prior: Trials of a problem that is like this one.
        needs: What each config has to have made ready before its steps count; Optuna's samplers do not weigh it.
        known_trials: How many trials were held against another limit before.
    """
    if name == MODEL and memory is not None:
        return ModelSearcher(
            space,
            limit_bytes=limit_bytes,
            memory=memory,
            dims=dims or {},
            prior=prior,
            needs=needs,
            known_trials=known_trials,
        )
    if name in {MODEL, GREEDY}:
        return GreedySearcher(space, budget=budget, limit_bytes=limit_bytes, needs=needs)
    return OptunaSearcher(space, limit_bytes=limit_bytes, sampler=SAMPLERS[name])
