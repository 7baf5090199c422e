"""What was best in a stored study, or was planned before any step, is tried before anything else."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from autorecompute.search.searcher import Proposal, SearcherWrapper

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config
    from autorecompute.search.prior import Prior
    from autorecompute.search.searcher import Searcher

MOST = 5
"""So many configs of a stored study are tried at most before the search goes its own way."""

FASTEST = 2
"""So many are taken by what its peaks say at the new sizes and limit, beside its answer and its finalists."""

SLACK = 0.05
"""A peak carried over to other sizes is off by a few percent: what misses the limit by less is tried all the same."""


class InheritedFirst(SearcherWrapper):
    """Proposes the best configs of a stored study right after the reference, then what another searcher proposes.

    Args:
        searcher: Who goes on.
        prior: The stored study.
        growth: How many times as large activations are as in the stored study (``Prior.growth``).
        limit_bytes: The limit that is tuned for.
    """

    def __init__(self, searcher: Searcher, prior: Prior, *, growth: float, limit_bytes: int) -> None:
        super().__init__(searcher)
        self._prior = prior
        self._firsts = dict(itertools.islice(_worth_trying(prior, growth, limit_bytes).items(), MOST))

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain."""
        proposal = self._searcher.propose(trials, claimed)
        if proposal is None or not any(trial.config.is_none for trial in trials):
            return proposal
        tried = {*claimed, *(trial.config for trial in trials)}
        untried = next((config for config in self._firsts if config not in tried), None)
        if untried is None:
            return proposal
        reason = f"{self._firsts[untried]} of study {self._prior.source}"
        return Proposal(config=untried, reason=reason, prediction=self._searcher.predict(untried, trials))


class PlannedFirst(SearcherWrapper):
    """Proposes a config that was planned as soon as anything was measured, then what another searcher proposes.

    Args:
        searcher: Who goes on.
        config: What was planned.
        least_fit: How surely it has to fit; where it may not, it is left to the other searcher.
    """

    def __init__(self, searcher: Searcher, config: Config, least_fit: float = 0.0) -> None:
        super().__init__(searcher)
        self._config, self._least_fit = config, least_fit

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain."""
        if not trials or self._config in {*claimed, *(trial.config for trial in trials)}:
            return self._searcher.propose(trials, claimed)
        prediction = self._searcher.predict(self._config, trials)
        if prediction is not None and prediction.fits < self._least_fit:
            return self._searcher.propose(trials, claimed)
        return Proposal(config=self._config, reason="planned, unmeasured", prediction=prediction)


def _worth_trying(prior: Prior, growth: float, limit_bytes: int) -> dict[Config, str]:
    """Return its answer, its finalists and its fastest within this limit, then its least peak.

    Each with what it was there.

    Left out is what should not fit here, be it the answer.
    """
    peaks = {trial.config: prior.peak_bytes_grown(trial, growth) for trial in prior.trials}
    fastest = [trial.config for trial in prior.fastest_within(limit_bytes, growth)[:FASTEST]]
    answers = [prior.answer] if prior.answer is not None else []
    found: dict[Config, str] = {}
    for role, configs in (("answer", answers), ("finalist", prior.finalists), ("fast trial", fastest)):
        for config in configs:
            peak_bytes = None if config.is_none else peaks.get(config)
            if peak_bytes is not None and peak_bytes <= limit_bytes * (1 + SLACK):
                found.setdefault(config, role)
    known = {config: peak for config, peak in peaks.items() if peak is not None and not config.is_none}
    is_harder = limit_bytes < prior.limit_bytes or growth > 1
    if known and (is_harder or not fastest):
        found.setdefault(min(known, key=known.__getitem__), "least peak")
    return found
