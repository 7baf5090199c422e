"""What is forecast from parts of steps is looked at as a whole step before it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.search.searcher import SearcherWrapper

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.memory import MemoryModel
    from autorecompute.plans import Config
    from autorecompute.search.searcher import Proposal, Searcher

MOST = 8
"""After so many configs that turned out too large no whole step is run: the parts do not tell this model's steps."""


def missing_in(
    memory: MemoryModel, dims: Mapping[str, int], step_bytes_of: Callable[[Config], int | None]
) -> Callable[[Config], int]:
    """Tell by how many bytes the forecast of a config is too low; 0 where it is not, or nobody knows.

    Args:
        memory: Forecasts.
        dims: The dimensions of a step at the target batch.
        step_bytes_of: What a whole step with a config takes beyond what is there before; ``None`` where none was run.
    """

    def missing_of(config: Config) -> int:
        step_bytes = step_bytes_of(config)
        return max(0, step_bytes - memory.forecast(config, dims).live_bytes) if step_bytes is not None else 0

    return missing_of


class WholeStepSearcher(SearcherWrapper):
    """Proposes what another searcher does, but nothing of which a whole step takes too much.

    Where every config does, the first proposal is the one that should need least: a training that has to have some
    config on is nearest to the limit with it.

    Args:
        searcher: Who proposes.
        missing_of: By how many bytes the forecast of a config is too low.
        limit_bytes: The memory limit.
        only_postpones: Whether a trial that needs too much does no harm: what should is proposed when nothing else is.
    """

    def __init__(
        self,
        searcher: Searcher,
        missing_of: Callable[[Config], int],
        limit_bytes: int,
        *,
        only_postpones: bool = False,
    ) -> None:
        super().__init__(searcher)
        self._missing_of, self._limit_bytes = missing_of, limit_bytes
        self._only_postpones = only_postpones
        self._too_large: dict[Config, tuple[int, Proposal]] = {}

    @property
    def gave_up(self) -> bool:
        """Tell whether no further whole step is run because ``MOST`` configs turned out too large."""
        return len(self._too_large) >= MOST

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain."""
        while not self.gave_up:
            proposal = self._searcher.propose(trials, {*claimed, *self._too_large})
            if proposal is None:
                break
            peak_bytes = self._peak_of(proposal)
            if peak_bytes <= self._limit_bytes:
                return proposal
            self._too_large[proposal.config] = peak_bytes, proposal
        if self._only_postpones:
            return self._searcher.propose(trials, claimed)
        is_first = not trials and not claimed
        least = min(self._too_large.values(), key=lambda found: found[0], default=None) if is_first else None
        return least[1] if least is not None else None

    def _peak_of(self, proposal: Proposal) -> int:
        """Return what the config should need by a whole step; nothing if that is as forecast, for better or worse."""
        missing_bytes = self._missing_of(proposal.config) if proposal.prediction is not None else 0
        return proposal.prediction.peak_bytes + missing_bytes if proposal.prediction and missing_bytes else 0
