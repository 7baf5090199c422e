"""Interface of a search, and the search that is guided by what others know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from autorecompute.figures import comparable_steps
from autorecompute.measurement import Prediction, Trial
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autorecompute.measurement import GradientCheck
    from autorecompute.memory import MemoryModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The trials of a stored study with the same plans, and the problem they were measured on.

    Step times carry over as shares of the reference's (``Trial.relative_throughput``), peaks in proportion to batch and
    dimensions.

    Attributes:
        source: Name of the stored study.
        limit_bytes: The memory limit that the outcomes of its trials were held against.
        resting_bytes: Bytes that its script held before the first activation existed.
        dims: Its dimensions besides the batch, the length of its sequences for instance.
        answer: The config that it recommends.
        finalists: The configs that it raced, the fastest first.
    """

    source: str
    batch: int
    limit_bytes: int
    resting_bytes: int
    trials: tuple[Trial, ...]
    dims: dict[str, int] = field(default_factory=dict)
    answer: Config | None = None
    finalists: tuple[Config, ...] = ()

    def growth(self, batch: int, dims: Mapping[str, int]) -> float:
        """Return the factor by which an activation grows at these dimensions, if it has all of them."""
        shared = [size / self.dims[name] for name, size in dims.items() if self.dims.get(name)]
        return math.prod(shared, start=batch / self.batch)


def slowness(trial: Trial) -> tuple[float, float]:
    """Order trials, the fastest first: by their steps where no reference could run that they have a share of."""
    return -(trial.relative_throughput or 0.0), trial.measurement.median_step_seconds or 0.0


def steps_by_number(trials: Sequence[Trial]) -> dict[int, float]:
    """Return the timed trials' steps beside the reference of the same minutes; in seconds where one has no reference.

    Beside a reference times can be compared over hours.
    """
    timed = [trial for trial in trials if trial.measurement.median_step_seconds]
    relative = [trial.relative_throughput for trial in timed]
    if all(relative):
        steps = [1 / share if share else None for share in relative]
    else:
        steps = comparable_steps([trial.measurement for trial in timed])
    return {trial.number: step for trial, step in zip(timed, steps, strict=True) if step}


Limit: TypeAlias = Callable[[Sequence["Trial"]], int]
"""The limit that peaks are held against, as the trials so far tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A config worth a trial, in its canonical form, with a few words for the one who watches.

    Attributes:
        gain: Share of the best step that the trial should gain; ``None`` where nobody can tell, or it is tried anyhow.
    """

    config: Config
    reason: str
    prediction: Prediction | None = None
    gain: float | None = None


def preset_reason(config: Config) -> str:
    """Return why a preset is measured: no recompute is what all others are held against."""
    return "baseline" if config.is_none else "preset"


class Searcher(Protocol):
    """Chooses what to measure next from what was measured.

    The answer depends on the trials alone, so that an interrupted search goes on where it stopped.
    """

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain.

        Others measure what is claimed at this moment. ``None`` then says that nothing is left before they are through.
        """
        ...

    def note_peak(self, config: Config, peak_bytes: int) -> None:
        """Learn the peak of a config from elsewhere than a trial; a searcher without a model has no use for it."""
        del config, peak_bytes

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Predict a config that somebody else chose; return ``None`` where the searcher cannot tell."""
        del config, trials
        return None

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return the timed trials' steps without the luck of the fastest, by number; only their order has a meaning."""
        ...


MOST_INHERITED = 5  # so many configs of a stored study are tried at most before the search goes its own way
FASTEST = 2  # so many are taken by what its peaks say at the new sizes and limit, beside its answer and its finalists
SLACK = 0.05  # a peak carried over to other sizes is off by a few percent: what misses the limit by less is tried


def _inherited(prior: Prior, growth: float, limit_bytes: int) -> dict[Config, str]:
    """Return its answer, its finalists and its fastest within this limit, then its least peak, each with its role.

    Left out is what should not fit here, be it the answer.
    """
    resting_bytes = prior.resting_bytes
    grown = {
        trial.config: resting_bytes + round((peak_bytes - resting_bytes) * growth)
        for trial in prior.trials
        if (peak_bytes := trial.measurement.peak_bytes) is not None
    }
    peaks = {config: peak for config, peak in grown.items() if not config.is_none}
    fitting = [trial for trial in prior.trials if grown.get(trial.config, math.inf) <= limit_bytes]
    fastest = [trial.config for trial in sorted(fitting, key=slowness)[:FASTEST]]
    answers = [prior.answer] if prior.answer is not None else []
    found: dict[Config, str] = {}
    for role, configs in (("answer", answers), ("finalist", prior.finalists), ("fast trial", fastest)):
        for config in configs:
            if peaks.get(config, math.inf) <= limit_bytes * (1 + SLACK):
                found.setdefault(config, f"{role} of study {prior.source}")
    is_harder = limit_bytes < prior.limit_bytes or growth > 1
    if peaks and (is_harder or not fastest):
        found.setdefault(min(peaks, key=peaks.__getitem__), f"least peak of study {prior.source}")
    return dict(itertools.islice(found.items(), MOST_INHERITED))


MOST_TOO_LARGE = 8  # after so many configs no whole step is run: the parts do not tell this model's steps


def needs_in(
    memory: MemoryModel, dims: Mapping[str, int], step_of: Callable[[Config], GradientCheck | None]
) -> Callable[[Config, int], int]:
    """Return what tells the peak of a config from a whole step at these dimensions, and from its predicted peak.

    On a card it is what a fresh process reserves, whatever the trials were that the prediction has learned from: they
    ran in what other trials had left. Elsewhere it is the prediction, with what the forecast of the step was too low.

    ``step_of`` gives a config's whole step; ``None`` if none was run.
    """

    def needs_of(config: Config, predicted_bytes: int) -> int:
        step = step_of(config)
        if step is None or step.step_bytes is None:
            return predicted_bytes
        if step.fragmented_bytes is not None:
            return memory.base_bytes(dims) + step.step_bytes + step.fragmented_bytes
        return predicted_bytes + max(0, step.step_bytes - memory.forecast(config, dims).live_bytes)

    return needs_of


class GuidedSearcher(Searcher):
    """Proposes what was planned or inherited, then what another searcher does, but nothing that takes too much.

    Peaks are held against whole steps where one can be run. In a training that cannot take back a step, where every
    config takes too much, the first proposal is the one that should need least: a training that has to have some config
    on is nearest to the limit with it.

    Args:
        searcher: The other searcher.
        planned: Proposed as soon as anything was measured.
        least_fit: The planned config's least chance to fit; with less it is left to the other searcher.
        prior: A stored study, whose best configs are proposed right after the reference.
        growth: Factor by which activations are larger than in the stored study (``Prior.growth``).
        needs_of: Peak of a config, from it and from its predicted peak; ``None`` where no whole step can be run.
        may_fail: True if a trial that needs too much does no harm. Then what was planned is tried all the same, and
            what takes too much when nothing else is left.
    """

    def __init__(  # noqa: PLR0913  (all that may come before a search)
        self,
        searcher: Searcher,
        limit_bytes: int,
        *,
        planned: Config | None = None,
        least_fit: float = 0.0,
        prior: Prior | None = None,
        growth: float = 1.0,
        needs_of: Callable[[Config, int], int] | None = None,
        may_fail: bool = True,
    ) -> None:
        self._searcher, self._limit_bytes = searcher, limit_bytes
        self._planned, self._least_fit = planned, least_fit
        self._inherited = _inherited(prior, growth, limit_bytes) if prior is not None else {}
        self._needs_of, self._may_fail = needs_of, may_fail
        self._too_large: dict[Config, tuple[int, Proposal]] = {}

    @property
    def gave_up(self) -> bool:
        """Return True once so many configs turned out too large that no further whole step is run."""
        return len(self._too_large) >= MOST_TOO_LARGE

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config to measure, or ``None`` when nothing is left to gain."""
        if self._may_fail and (planned := self._propose_planned(trials, claimed)) is not None:
            return planned
        proposal = self._propose_within_limit(trials, claimed)
        if proposal is None or not any(trial.config.is_none for trial in trials):
            return proposal
        tried = {*claimed, *(trial.config for trial in trials)}
        for config, reason in self._inherited.items():
            if config not in tried:
                return Proposal(config=config, reason=reason, prediction=self.predict(config, trials))
        return proposal

    def predict(self, config: Config, trials: Sequence[Trial]) -> Prediction | None:
        """Return the other searcher's prediction of a config."""
        return self._searcher.predict(config, trials)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return the other searcher's expected steps of the timed trials."""
        return self._searcher.expect_steps(trials)

    def _propose_planned(self, trials: Sequence[Trial], claimed: Collection[Config]) -> Proposal | None:
        if self._planned is None or not trials or self._planned in {*claimed, *(trial.config for trial in trials)}:
            return None
        prediction = self.predict(self._planned, trials)
        if prediction is not None and prediction.fits < self._least_fit:
            return None
        return Proposal(config=self._planned, reason="planned, unmeasured", prediction=prediction)

    def _propose_within_limit(self, trials: Sequence[Trial], claimed: Collection[Config]) -> Proposal | None:
        while not self.gave_up:
            others = {*claimed, *self._too_large}
            planned = None if self._may_fail else self._propose_planned(trials, others)
            proposal = planned or self._searcher.propose(trials, others)
            if proposal is None:
                break
            prediction = proposal.prediction
            if prediction is None or self._needs_of is None:
                return proposal
            needed_bytes = self._needs_of(proposal.config, prediction.peak_bytes)
            if needed_bytes <= max(self._limit_bytes, prediction.peak_bytes):
                return proposal
            self._too_large[proposal.config] = needed_bytes, proposal
            self._searcher.note_peak(proposal.config, needed_bytes)
        if self._may_fail:
            return self._searcher.propose(trials, claimed) if self._too_large else None
        if trials or claimed or not self._too_large:
            return None
        return min(self._too_large.values(), key=lambda found: found[0])[1]
