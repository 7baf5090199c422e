"""What recompute saves at the peak, learnt from the trials."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Config, Plan, Space

FEW_PLANS = 1
"""Configs of so many plans, and those that leave so many out, tell what a plan saves, and not how savings add up."""


class PeakModel:
    """The peak of a config: that of the nearest trial, corrected by what each plan was seen to save near it.

    Memory is neither additive nor monotone, so nothing is concluded from trials far away where there are nearer ones.

    Args:
        space: The plans.
        trials: What was measured.
        limit_bytes: The memory limit.
    """

    def __init__(self, space: Space, trials: Sequence[Trial], limit_bytes: int) -> None:
        self._space, self._limit_bytes = space, limit_bytes
        chosen = [trial for trial in trials if space.is_mix(trial.config)]
        self._peaks = {t.config: t.measurement.peak_bytes for t in chosen if t.measurement.peak_bytes is not None}
        too_large = [trial.config for trial in chosen if trial.measurement.outcome.is_about_memory]
        self._savings = {plan: self._seen_savings(plan, too_large) for plan in space.plans}
        if self._peaks:
            # Out of memory is above the limit; how far above, the nearest measured peak tells.
            guesses = {c: max(self._forecast_bytes(c), limit_bytes + 1) for c in too_large if c not in self._peaks}
            self._peaks |= guesses
        self._optimism_bytes = self._learn_optimism()

    def spare_bytes(self, config: Config) -> int | None:
        """Return what the limit leaves beyond a config that was tried, below 0 where it is too much.

        ``None`` for others.
        """
        return self._limit_bytes - self._peaks[config] if config in self._peaks else None

    def excess_bytes(self, config: Config) -> int:
        """Return how far above the limit the peak of a config should be; 0 where it should fit."""
        distance = min((len(base.choices ^ config.choices) for base in self._peaks), default=0)
        return max(0, self._forecast_bytes(config) + round(distance * self._optimism_bytes) - self._limit_bytes)

    def saving_bytes(self, plan: Plan, near: Config) -> int:
        """Return what the whole plan saves in a config like this one; the stated saving where no trial tells."""
        seen = self._savings[plan]
        if not seen:
            return plan.saving_bytes or 0
        others = near.without_plan(plan).choices
        return min((len(config.without_plan(plan).choices ^ others), saving) for config, saving in seen)[1]

    def _learn_optimism(self) -> float:
        """Return what forecasts were too low by, on average, for each plan between a config and those known.

        The search asks for what should just fit, so that the forecasts that err on the low side are those it follows.
        """
        if len(self._peaks) == 1:
            return 0.0
        middling = [c for c in self._peaks if FEW_PLANS < len(c.choices) < len(self._space.all_on.choices) - FEW_PLANS]
        misses = distances = 0
        for config in middling:
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
