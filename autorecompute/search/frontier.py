"""The configs that no other beats in both peak and extra work, before any step was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autorecompute.search.candidates import Candidates, choices_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autorecompute.memory import Forecast, MemoryModel


def predict_frontier(memory: MemoryModel, dims: Mapping[str, int]) -> tuple[Forecast, ...]:
    """Return the forecasts of those configs among all that the search knows, the lowest peak first.

    Args:
        memory: A model that can forecast any config.
        dims: The dimensions of a step.

    Raises:
        KeyError: a shape depends on a dimension that is not known.
    """
    candidates = Candidates(memory.space, memory.simulator(dims, choices_of(memory.space)))
    simulated = candidates.simulated
    places = undominated(simulated.peak_bytes, simulated.recompute_share)
    return tuple(memory.forecast(candidates.config(place), dims) for place in places)


def undominated(peaks: np.ndarray, costs: np.ndarray) -> list[int]:
    """Return the places that no other beats in both, the lowest peak first.

    Args:
        peaks: Bytes, an entry for each config.
        costs: Step times, or shares of extra work.
    """
    places, least = [], np.inf
    for place in np.lexsort((costs, peaks)):
        if costs[place] < least:
            places.append(int(place))
            least = costs[place]
    return places
