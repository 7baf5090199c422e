"""The configs that are looked at where plans count: one set of plans in the first blocks, another one in the rest.

With options that count over many blocks there are far too many configs to list. Most of them are no better than others:
for any peak only the cheapest sets of plans are kept while plan after plan is added (a knapsack by dynamic programming,
whose weights are simulated peaks), and each pair of those sets is then mixed at every count. What mixing leaves out,
such as different counts of an encoder's and a decoder's plans, is found from there: of the configs with one count moved
up or down the cheapest for their peaks are kept, and so on from these.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.memory import Simulated, Simulator

MOST_MIXES = 2**15
"""So many mixes are looked at, give or take those that cannot exist."""

MOST_SETS = 256
"""So many sets of plans are kept while plans are added."""

FEWEST_SETS = 8
"""So many sets are mixed even where the blocks are very many."""

RANGES = 32
"""Sets that need about the same, as one of so many even ranges has it, compete with each other."""

FINE_RANGES, OF_EACH = 128, 2
"""So many ranges of peaks, and the cheapest of each, have their counts moved."""

MOVES = 8
"""So many counts of a config are moved one after the other, at most."""

LEAPS = 8
"""Of more occurrences than this, a count is also moved by such a part of them."""


class Mixer:
    """Makes mixes of plans.

    Args:
        by_plan: The choices of each plan, of shape ``[plans, choices]``, 0 or 1.
        occurrences: How many occurrences each choice has; 1 where its plan does not count.
        simulator: Simulates configs.
        exist: Tells which of some configs exist.
    """

    def __init__(
        self,
        by_plan: np.ndarray,
        occurrences: Sequence[int],
        simulator: Simulator,
        exist: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._by_plan, self._occurrences = by_plan, np.array(occurrences)
        self._simulator, self._exist = simulator, exist

    def mixes(self) -> np.ndarray:
        """At which share of its occurrences each choice is on: a line for each config, without recompute among them."""
        sets = self._sets()
        counts = self._at_counts(self._by_plan, np.zeros_like(self._by_plan))
        steps = max(int(self._occurrences.max(initial=1)) - 1, 1)
        few = self._best(sets, max(math.isqrt(MOST_MIXES // steps), FEWEST_SETS))
        first, rest = (part.reshape(-1, few.shape[1]) for part in np.broadcast_arrays(few[:, None], few[None]))
        found = np.concatenate([sets, counts, self._at_counts(first, rest)])
        mixes = np.unique(found[self._exist(found)], axis=0)
        return np.unique(np.concatenate([mixes, *self._move_counts(mixes)]), axis=0)

    def _move_counts(self, mixes: np.ndarray) -> list[np.ndarray]:
        """Return the cheapest mixes, and what is cheaper than they are with some counts moved."""
        kept = [self._cheapest_of_fine_ranges(mixes)]
        for _ in range(MOVES):
            around = np.unique(np.concatenate([kept[-1], *self._neighbours(kept[-1])]), axis=0)
            found = self._cheapest_of_fine_ranges(around[self._exist(around)])
            if np.array_equal(found, kept[-1]):
                break
            kept.append(found)
        return kept

    def _cheapest_of_fine_ranges(self, mixes: np.ndarray) -> np.ndarray:
        simulated = self._simulator.simulate(mixes)
        places = _cheapest(simulated.peak_bytes, simulated, FINE_RANGES * OF_EACH, FINE_RANGES)
        cheapest: np.ndarray = mixes[np.sort(places)]
        return cheapest

    def _neighbours(self, mixes: np.ndarray) -> list[np.ndarray]:
        """Return the mixes with the count of one choice moved, by one occurrence or by a leap."""
        found = []
        for column, most in enumerate(self._occurrences.tolist()):
            for by in {1, -1, most // LEAPS, -(most // LEAPS)} - {0}:
                moved = mixes.copy()
                moved[:, column] = (np.rint(moved[:, column] * most) + by) / most
                found.append(moved[(moved[:, column] >= 0) & (moved[:, column] <= 1)])
        return found

    def _sets(self) -> np.ndarray:
        """Set of plans that are on at all occurrences: the cheapest of each range of peaks."""
        sets = np.zeros((1, self._by_plan.shape[1]), dtype=np.float32)
        for plan in self._by_plan:
            added = np.maximum(sets, plan)
            sets = self._best(np.unique(np.concatenate([sets, added[self._exist(added)]]), axis=0), MOST_SETS)
        return sets

    def _best(self, sets: np.ndarray, most: int) -> np.ndarray:
        if len(sets) <= most:
            return sets
        simulated = self._simulator.simulate(sets)
        needs = (simulated.peak_bytes, simulated.stash_bytes)
        by_peak, by_stash = (_cheapest(each, simulated, most // len(needs)) for each in needs)
        best: np.ndarray = sets[np.unique(np.concatenate([by_peak, by_stash]))]
        return best

    def _at_counts(self, first: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """Return the plans of ``rest`` everywhere, and those of ``first`` at each count of the first occurrences."""
        most = int(self._occurrences.max(initial=1))
        shares = (np.rint(self._occurrences * count / most) / self._occurrences for count in range(1, most))
        parts = [np.maximum(rest, first * share) for share in shares]
        return np.concatenate([*parts, np.maximum(first, rest)], dtype=np.float32, casting="same_kind")


def _cheapest(needs: np.ndarray, simulated: Simulated, most: int, ranges: int = RANGES) -> np.ndarray:
    """Return where the sets are that recompute least among those that need about the same."""
    ranges = min(ranges, most)
    spread = max(float(needs.max() - needs.min()), 1.0)
    within = np.minimum((needs - needs.min()) * ranges / spread, ranges - 1).astype(int)
    order = np.lexsort((simulated.recompute_share, within))
    starts = np.searchsorted(within[order], within[order])
    found: np.ndarray = order[np.arange(len(order)) - starts < most // ranges]
    return found
