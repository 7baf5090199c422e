"""What was best in a stored study is tried before anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.search.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from autorecompute.measurement import Prediction, Trial
    from autorecompute.plans import Config
    from autorecompute.search.interface import Searcher
    from autorecompute.search.prior import Prior

MOST = 5
"""So many configs of a stored study are tried at most before the search goes its own way."""

FASTEST = 2
"""So many are taken by what its peaks say at the new sizes and limit, beside its answer and its finalists."""

SLACK = 0.05
"""A peak carried over to other sizes is off by a few percent: what misses the limit by less is tried all the same."""


class InheritedFirst:
    """Proposes the best configs of a stored study right after the reference, then what another searcher proposes.

    Args:
        searcher: Who goes on.
        prior: The stored study.
        growth: How many times as large activations are as in the stored study (``Prior.growth``).
        limit_bytes: The limit that is tuned for.
    """

    def __init__(self, searcher: Searcher, prior: Prior, *, growth: float, limit_bytes: int) -> None:
        self._searcher, self._prior = searcher, prior
        self._firsts = list(_worth_trying(prior, growth, limit_bytes))[:MOST]

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """The next config to measure, or ``None`` when nothing is left to gain."""
        proposal = self._searcher.propose(trials, claimed)
        if proposal is None or not any(trial.config.is_none for trial in trials):
            return proposal
        tried = {*claimed, *(trial.config for trial in trials)}
        untried = next((config for config in self._firsts if config not in tried), None)
        if untried is None:
            return proposal
        reason = f"best of study {self._prior.source}"
        return Proposal(config=untried, reason=reason, prediction=self._searcher.predict(untried, trials))

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """What the other searcher expects of it."""
        return self._searcher.predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """What the other searcher expects."""
        return self._searcher.expect_steps(trials)


def _worth_trying(prior: Prior, growth: float, limit_bytes: int) -> Iterator[Config]:
    """Its answer, its finalists and its fastest within this limit, without repetition; then its least peak."""
    peaks = {trial.config: prior.peak_bytes_grown(trial, growth) for trial in prior.trials}
    fastest = [trial.config for trial in prior.fastest_within(limit_bytes, growth)[:FASTEST]]
    best = [prior.answer, *prior.finalists, *fastest]
    for config in dict.fromkeys(config for config in best if config is not None and not config.is_none):
        peak_bytes = peaks.get(config)
        if peak_bytes is not None and peak_bytes <= limit_bytes * (1 + SLACK):
            yield config
    known = {config: peak for config, peak in peaks.items() if peak is not None and not config.is_none}
    is_harder = limit_bytes < prior.limit_bytes or growth > 1
    if known and (is_harder or not fastest):
        yield min(known, key=known.__getitem__)
