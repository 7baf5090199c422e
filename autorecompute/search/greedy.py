"""Searches without a model of memory: switches on what saves most for its time."""

from __future__ import annotations

import math
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.search.candidates import sound_space
from autorecompute.search.searcher import Proposal, Searcher, preset_reason, steps_by_number
from autorecompute.search.surrogate import needs_nothing, relative_costs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Plan, Space
    from autorecompute.search.surrogate import Needs


FEW_ON_OR_OFF = 1  # plans on, or left out: such configs tell what a plan saves, and not how savings add up


class PeakModel:
    """The peak of a config: that of the nearest trial, corrected by what each plan was seen to save near it.

    Memory is neither additive nor monotone, so nothing is concluded from trials far away where there are nearer ones.
    """

    def __init__(self, space: Space, trials: Sequence[Trial], limit_bytes: int) -> None:
        self._space, self._limit_bytes = space, limit_bytes
        chosen = [trial for trial in trials if space.is_mix(trial.config)]
        self._peaks = {t.config: t.measurement.peak_bytes for t in chosen if t.measurement.peak_bytes is not None}
        too_large = [trial.config for trial in chosen if trial.measurement.outcome.is_about_memory]
        self._savings = {plan: self._seen_savings(plan, too_large) for plan in space.plans}
        if self._peaks:
            # Out of memory is above the limit; how far above, the nearest measured peak tells.
            self._peaks |= {c: max(self._forecast_bytes(c), limit_bytes + 1) for c in too_large if c not in self._peaks}
        self._optimism_bytes = self._learn_optimism()

    def spare_bytes(self, config: Config) -> int | None:
        """Return the bytes that a tried config leaves below the limit, negative above it; ``None`` for others."""
        return self._limit_bytes - self._peaks[config] if config in self._peaks else None

    def excess_bytes(self, config: Config) -> int:
        """Return the bytes by which a config's peak should exceed the limit; 0 where it should fit."""
        distance = min((len(base.choices ^ config.choices) for base in self._peaks), default=0)
        return max(0, self._forecast_bytes(config) + round(distance * self._optimism_bytes) - self._limit_bytes)

    def saving_bytes(self, plan: Plan, near: Config) -> int:
        """Return the bytes that the whole plan saves in a config like this one; the stated saving if no trial tells."""
        seen = self._savings[plan]
        if not seen:
            return plan.saving_bytes or 0
        others = near.without_plan(plan).choices
        return min((len(config.without_plan(plan).choices ^ others), saving) for config, saving in seen)[1]

    def _learn_optimism(self) -> float:
        """Return the bytes by which forecasts were too low, on average, for each plan between a config and those known.

        The search asks for what should just fit, so that the forecasts that err on the low side are those it follows.
        """
        most = len(self._space.all_on.choices) - FEW_ON_OR_OFF
        misses = distances = 0
        for config in self._peaks if len(self._peaks) > 1 else ():
            if FEW_ON_OR_OFF < len(config.choices) < most:
                others = [other for other in self._peaks if other != config]
                misses += self._peaks[config] - self._forecast_bytes(config, others)
                distances += min(len(other.choices ^ config.choices) for other in others)
        return max(0.0, misses / distances) if distances else 0.0

    def _forecast_bytes(self, config: Config, known: Collection[Config] | None = None) -> int:
        """Return the peak to expect, the highest where several trials are equally near."""
        distances = {base: len(base.choices ^ config.choices) for base in known or self._peaks}
        nearest = min(distances.values())
        return max(self._forecast_from(base, config) for base, distance in distances.items() if distance == nearest)

    def _forecast_from(self, base: Config, config: Config) -> int:
        shares = {plan: self._space.share(config, plan) - self._space.share(base, plan) for plan in self._space.plans}
        saved = sum(share * self.saving_bytes(plan, config) for plan, share in shares.items() if share)
        return self._peaks[base] - round(saved)

    def _seen_savings(self, plan: Plan, too_large: Sequence[Config]) -> list[tuple[Config, int]]:
        """Return the configs with the plan that were also tried without it, and the difference."""
        seen = []
        for config, peak in self._peaks.items():
            without = config.without_plan(plan)
            if not (share := self._space.share(config, plan)):
                continue
            if without in self._peaks:
                seen.append((config, round((self._peaks[without] - peak) / share)))
            elif without in too_large:
                seen.append((config, max(round((self._limit_bytes + 1 - peak) / share), plan.saving_bytes or 0)))
        # Leaving a plan out can save far more than it keeps, where that breaks a chain of recompute from layer to
        # layer. That tells what the chain costs, not what the plan saves.
        return [pair for pair in seen if pair[1] >= 0] or [(config, 0) for config, _ in seen]


EXPECTED_COST = 0.02  # step time that a plan adds, as a share, as long as no trial tells
COST_SPREAD = 0.02  # deviation of a plan's cost from the expected one, as a rule
COST_SPREAD_OF_COUNTED = 0.2  # the same of a plan that counts: all the blocks that it recomputes take a third of a step
LEAST_NOISE = 0.004**2  # variance of a step time on the quietest machine, as a share of it


def fit_costs(space: Space, trials: Sequence[Trial]) -> tuple[Callable[[Config], float], dict[Plan, float]]:
    """Return a forecast of step times as a sum over the plans, and what each plan adds, below 0 where it is faster.

    Both are shares of the fastest trial's step. A ridge regression leaves what no trial can tell as it was expected.
    How far the trials may pull a cost away from there is decided by how well the costs explain them: on a noisy machine
    the trials say less. It is the posterior mean under normal noise and a normal prior (empirical Bayes).
    """
    base, costs, plans = 1.0, dict.fromkeys(space.plans, EXPECTED_COST), space.plans
    steps = relative_steps(trials)
    if known := [trial for trial in trials if trial.number in steps and space.is_mix(trial.config)]:
        times = np.array([steps[trial.number] for trial in known])
        design = np.array([[1.0, *(space.share(trial.config, plan) for plan in plans)] for trial in known])
        spreads = [COST_SPREAD_OF_COUNTED if plan.counts else COST_SPREAD for plan in plans]
        found = _ridge(design, times, LEAST_NOISE, spreads)
        spare = max(len(known) - len(found), 1)
        noise = max(float(np.square(times - design @ found).sum()) / spare, LEAST_NOISE)
        base, *added = map(float, _ridge(design, times, noise, spreads))
        costs = dict(zip(plans, added, strict=True))
    return lambda config: base + sum(costs[on] * space.share(config, on) for on in space.plans_of(config)), costs


def relative_steps(trials: Sequence[Trial]) -> dict[int, float]:
    """Return the timed trials' steps as shares of the fastest one's, by number."""
    steps = steps_by_number(trials)
    fastest = min(steps.values(), default=1.0)
    return {number: step / fastest for number, step in steps.items()}


def _without_luck(trials: Sequence[Trial], forecast: Callable[[Config], float]) -> dict[int, float]:
    """Return the timed trials' steps, never less than was measured: the fastest of many was lucky."""
    steps = relative_steps(trials)
    return {trial.number: max(steps[trial.number], forecast(trial.config)) for trial in trials if trial.number in steps}


def _ridge(design: np.ndarray, times: np.ndarray, noise: float, spreads: Sequence[float]) -> np.ndarray:
    """Return the base and the costs that explain the times best, given the variance of their noise."""
    weights = np.array([0.0, *(noise / spread**2 for spread in spreads)])
    return np.linalg.solve(design.T @ design + np.diag(weights), design.T @ times + weights * EXPECTED_COST)


LEAST_COST = 0.002  # no plan counts as cheaper than this share of a step when its saving is weighed against its time


def moves_from(base: Config, space: Space, costs: Mapping[Plan, float], peaks: PeakModel) -> Iterator[Config]:
    """Yield one plan on or off, and several at once towards the limit; nothing where the peak is unknown."""
    spare_bytes = peaks.spare_bytes(base)
    if spare_bytes is None:
        return
    on = [plan for plan in space.plans if base.has(plan)]
    off = [plan for plan in space.plans if not base.has(plan)]
    savings = {plan: peaks.saving_bytes(plan, base) for plan in space.plans}
    worth = {plan: savings[plan] / max(costs[plan], LEAST_COST) for plan in space.plans}
    yield from (base.without_plan(plan) for plan in on)
    yield from (space.with_plan(base, plan) for plan in off)
    if spare_bytes < 0:
        yield from _grow(space, base, sorted(off, key=worth.__getitem__, reverse=True), savings, -spare_bytes)
    else:
        costly = [plan for plan in on if costs[plan] > 0]
        yield from _prune(space, base, sorted(costly, key=worth.__getitem__), savings, spare_bytes)


def _grow(
    space: Space, config: Config, plans: list[Plan], savings: dict[Plan, int], missing_bytes: int
) -> Iterator[Config]:
    """Switch plan after plan on until the config should fit, the last one at no more occurrences than that takes."""
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
    """Switch plan after plan off, but those without which the config should no longer fit, or as many as that takes."""
    for plan in plans:
        if savings[plan] * space.share(config, plan) <= spare_bytes:
            spare_bytes -= round(savings[plan] * space.share(config, plan))
            config = config.without_plan(plan)
            yield config
        elif plan.counts and (spare := plan.occurrences * spare_bytes // savings[plan]):
            yield space.with_plan(config, plan, config.count_of(plan) - spare)


WHOLE_SHARE = 0.7  # an opening within this share of the budget is gone through as a whole
CUT_SHARE = 2 / 3  # a longer one is cut down to this share, so that a third of the budget is left to use what it told
FAILURES_THAT_TELL = 3  # plans alone that ran out of memory, and none that did not: the rest would tell as little


def opening_of(space: Space, presets: Iterable[Config]) -> tuple[list[Proposal], list[Proposal], list[Proposal]]:
    """Return all that the first trials of a study can be: presets, plans alone, and all plans but one.

    The plans come in the order of their stated savings. A training system may state too little, so a small saving puts
    a plan at the end and never leaves it out.
    """
    plans, all_on = sorted(space.plans, key=lambda plan: plan.saving_bytes or 0, reverse=True), space.all_on
    reasons = {**{preset: preset_reason(preset) for preset in presets}, all_on: "all at once"}
    alone = [Proposal(config=Config.of([plan]), reason=f"{plan.label} alone") for plan in plans]
    all_but = [
        Proposal(config=all_on.without_plan(plan), reason=f"all but {plan.label}") for plan in plans if all_on.has(plan)
    ]
    return [Proposal(config=config, reason=reason) for config, reason in reasons.items()], alone, all_but


def _tell_nothing(alone: Sequence[Proposal], trials: Sequence[Trial]) -> bool:
    configs = {proposal.config for proposal in alone}
    outcomes = [trial.measurement.outcome for trial in trials if trial.config in configs]
    return outcomes.count(Outcome.OOM) >= FAILURES_THAT_TELL and not any(one.is_measured for one in outcomes)


NOISE = 0.01  # a gain below this share of the step time is not worth a trial: it could not be told from noise
FEW_PLANS = 2  # up to so many plans are named in a reason


class GreedySearcher(Searcher):
    """Grows and prunes what was tried towards the fastest config within the limit.

    Every step is measured and the next one starts from what was measured, so that a wrong forecast costs one trial. The
    search ends when no config that should fit should also be faster, and as many tries against the odds as there are
    plans have gained nothing.

    The caller counts the trials that the study may have: here the ``budget`` bounds the opening.
    """

    def __init__(self, space: Space, *, budget: int, limit_bytes: int, needs: Needs = needs_nothing) -> None:
        self._space, self._budget, self._limit_bytes, self._needs = space, budget, limit_bytes, needs

    def propose(self, trials: Sequence[Trial], claimed: Collection[Config] = ()) -> Proposal | None:
        """Return the next config; ``None`` when the batch fits without recompute, or nothing is left to gain."""
        if any(trial.config.is_none and trial.fits for trial in trials):
            return None
        tried = {config.hash for config in (*claimed, *(trial.config for trial in trials))}
        space = sound_space(self._space, trials)
        presets, alone, all_but = opening_of(space, self._space.presets.values())
        whole = [*presets, *alone, *all_but]
        alone = [] if _tell_nothing(alone, trials) else alone
        opening = [*presets, *alone, *all_but]
        if len(opening) > round(self._budget * WHOLE_SHARE):
            # In turns, as it takes both: what a plan saves by itself, and which plan breaks the chain of recompute.
            in_turns = chain.from_iterable(zip(alone, all_but, strict=False)) if alone else all_but
            opening = [*presets, *in_turns][: round(self._budget * CUT_SHARE)]
        # What the opening left out comes last: it may still tell something where no step looks worth a trial.
        proposals = chain(opening, self._steps(space, whole, trials), whole)
        return next((proposal for proposal in proposals if proposal.config.hash not in tried), None)

    def expect_steps(self, trials: Sequence[Trial]) -> Mapping[int, float]:
        """Return the step times by a sum of plans."""
        return _without_luck(trials, fit_costs(self._space, trials)[0])

    def _steps(self, space: Space, opening: Sequence[Proposal], trials: Sequence[Trial]) -> Iterator[Proposal]:
        """Yield what should be faster: first what should fit and gains most for its trial's time, then by the peak."""
        (forecast, costs), peaks = fit_costs(space, trials), PeakModel(space, trials, self._limit_bytes)
        expected = _without_luck(trials, forecast)
        best = min((trial for trial in trials if trial.fits), key=lambda trial: expected[trial.number], default=None)
        time_to_beat = expected[best.number] * (1 - NOISE) if best else math.inf
        # Each with the first trial that it is a step away from.
        bases = {c: trial for trial in reversed(trials) for c in moves_from(trial.config, space, costs, peaks)}
        excess = {c: peaks.excess_bytes(c) for c in bases if forecast(c) < time_to_beat}
        opened, first = {proposal.config for proposal in opening}, best.number if best else 0
        later = [trial for trial in trials if trial.number > first and trial.config not in opened]
        has_patience = best is None or len(later) < len(space.plans)
        # Where nothing fits yet, anything that does is a gain, the faster the better.
        slowest = 1 + max(map(forecast, excess), default=0.0)
        cost_of = relative_costs(trials, self._needs) or (lambda _: 1.0)
        gains = {c: (min(time_to_beat, slowest) - forecast(c)) / cost_of(c) for c in excess}
        for config in sorted(excess, key=lambda config: (excess[config], -gains[config], config.hash)):
            if has_patience or not excess[config]:
                yield Proposal(config=config, reason=_in_words(space, bases[config], config))


def _in_words(space: Space, base: Trial, config: Config) -> str:
    before, after = space.plans_of(base.config), space.plans_of(config)
    words = [f"trial {base.number}"]
    for word, some, others in (("with", after, before), ("without", before, after)):
        if labels := [plan.label for plan in some if plan not in others]:
            words += [word, " and ".join(labels) if len(labels) <= FEW_PLANS else f"{len(labels)} plans"]
    return " ".join(words)
