import dataclasses

import numpy as np

from autorecompute.memory import Forecast, MemoryModel, Phase, Simulator, covered, trace
from autorecompute.plans import Config
from autorecompute.plans.savings import evaluate

ERROR = 0.02


@dataclasses.dataclass(frozen=True)
class LinearMemory(MemoryModel):
    """Peaks as a straight line between the step without recompute and that with all plans on."""

    small: object
    likely_error = ERROR

    @property
    def dims(self):
        return self.small.profiles[Config()].dims

    @property
    def looked_at(self):
        return self.small.profiles

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


class LinearSimulator(Simulator):
    def __init__(self, model, dims, choices):
        plans = [next(plan for plan in model.space.plans if choice in plan.choices) for choice in choices]
        super().__init__(choices, [max(plan.occurrences, 1) for plan in plans])
        self._space = model.space
        self._shares = np.array([model.saved_share(plan, dims) / len(plan.choices) for plan in plans])
        self._none, self._full = (model.forecast(config, dims) for config in (Config(), model.space.all_on))

    def _simulate(self, switches):
        shares = (switches - covered(switches, self._space, self._choices)) @ self._shares
        none, full = self._none, self._full
        return (
            none.live_bytes + shares * (full.live_bytes - none.live_bytes),
            none.stash_bytes + shares * (full.stash_bytes - none.stash_bytes),
            shares * full.recompute_share,
        )
