import bisect
import dataclasses

import numpy as np

from autorecompute.memory import STEP_ERROR, Effect, Forecast, Phase, Simulated, trace
from autorecompute.plans import Config
from autorecompute.plans.savings import evaluate

ERROR = 0.02
LARGEST_BATCH = 1 << 12


@dataclasses.dataclass(frozen=True)
class LinearMemory:
    """Peaks as a straight line between the step without recompute and that with all plans on."""

    space: object
    small: object
    likely_error = ERROR

    @property
    def dims(self):
        return self.small.profiles[Config()].dims

    def timeline(self, config, dims=None):
        return trace(self.small.profiles.get(config, self.small.profiles[Config()]), dims)

    def base_bytes(self, dims):
        del dims
        return self.small.peak_bytes - self.timeline(Config()).peak_bytes

    def simulator(self, dims, choices):
        return LinearSimulator(self, dims, choices)

    def saved_share(self, plan, dims):
        savings = {each: evaluate(each.saving, {**self.dims, **dims}) or 1 for each in self.space.plans}
        whole = sum(savings[each] for each in self.space.plans_of(self.space.all_on))
        return savings[plan] / whole

    def forecast(self, config, dims):
        shares = sum(self.saved_share(plan, dims) * self.space.share(config, plan) for plan in self.space.plans)
        none, full = self.timeline(Config(), dims), self.timeline(self.space.all_on, dims)
        live = round(none.peak_bytes + shares * (full.peak_bytes - none.peak_bytes))
        return Forecast(
            config=config,
            peak_bytes=self.base_bytes(dims) + live,
            live_bytes=live,
            stash_bytes=round(none.stash_bytes + shares * (full.stash_bytes - none.stash_bytes)),
            error_share=ERROR,
            recompute_share=shares * self.recompute_share,
        )

    @property
    def recompute_share(self):
        none, full = (self.small.profiles[config].operations for config in (Config(), self.space.all_on))
        again = sum(operation.seconds for operation in full if operation.phase is Phase.RECOMPUTE)
        return again / sum(operation.seconds for operation in none)

    def forecasts(self, dims):
        found = [self.forecast(config, dims) for config in self.small.profiles]
        return sorted(found, key=lambda forecast: forecast.recompute_share)

    def effects(self, dims):
        effects = [
            Effect(
                plan=plan,
                alone=self.forecast(Config.of([plan]), dims),
                left_out=self.forecast(self.space.all_on.without_plan(plan), dims),
            )
            for plan in self.space.plans
        ]
        return sorted(effects, key=lambda effect: effect.alone.peak_bytes)

    def largest_batch(self, config, dims, limit_bytes):
        batches = range(1, LARGEST_BATCH + 1)
        return bisect.bisect_right(batches, limit_bytes, key=lambda batch: self._peak_at(batch, config, dims))

    def plans_by_tensor(self):
        return {}

    def _peak_at(self, batch, config, dims):
        return self.forecast(config, {**dims, "batch": batch}).peak_bytes


class LinearSimulator:
    def __init__(self, model, dims, choices):
        self._choices = choices
        self._columns = [next(plan for plan in model.space.plans if choice in plan.choices) for choice in choices]
        self._shares = np.array([model.saved_share(plan, dims) / len(plan.choices) for plan in self._columns])
        self._covers = [[other.site in model.space.covers.get(one.site, ()) for other in choices] for one in choices]
        self.call_seconds = np.zeros(len(choices))
        self.step_error = STEP_ERROR
        self._none, self._full = (model.forecast(config, dims) for config in (Config(), model.space.all_on))

    def matrix(self, configs):
        rows = [[config.share_of(plan) for plan in self._columns] for config in configs]
        return np.array(rows, dtype=np.float32).reshape(len(rows), len(self._choices))

    def _covered(self, switches):
        covered = np.zeros_like(switches)
        for column, inside in enumerate(self._covers):
            covered[:, inside] = np.maximum(covered[:, inside], switches[:, [column]])
        return np.minimum(covered, switches)

    def simulate(self, switches):
        shares = (switches - self._covered(switches)) @ self._shares
        none, full = self._none, self._full
        return Simulated(
            peak_bytes=none.live_bytes + shares * (full.live_bytes - none.live_bytes),
            stash_bytes=none.stash_bytes + shares * (full.stash_bytes - none.stash_bytes),
            recompute_share=shares * full.recompute_share,
        )
