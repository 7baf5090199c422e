"""The fake backend's model of memory: what all plans save together is split by what each of them states."""

import dataclasses

import numpy as np

from autorecompute.memory import Effect, Forecast, Phase, Simulated, trace
from autorecompute.memory.model import STEP_ERROR
from autorecompute.plans import Config
from autorecompute.plans.savings import evaluate

ERROR = 0.02
LARGEST_BATCH = 1 << 12


@dataclasses.dataclass(frozen=True)
class LinearMemory:
    """Peaks as a straight line between the step without recompute and that with all plans on.

    Attributes:
        space: The plans.
        small: The profiled steps; these two are among them.
    """

    space: object
    small: object
    likely_error = ERROR

    @property
    def dims(self):
        """The dimensions of the profiled steps."""
        return self.small.profiles[Config()].dims

    def timeline(self, config, dims=None):
        """The step of a config, as far as it was profiled; that without recompute for every other one."""
        return trace(self.small.profiles.get(config, self.small.profiles[Config()]), dims)

    def base_bytes(self, dims):
        """What is held between two steps, and not by them."""
        del dims
        return self.small.peak_bytes - self.timeline(Config()).peak_bytes

    def simulator(self, dims, choices):
        """Adds up what the choices save."""
        return LinearSimulator(self, dims, choices)

    def saved_share(self, plan, dims):
        """The share of the way from no recompute to all plans on that a plan goes alone."""
        savings = {each: evaluate(each.saving, {**self.dims, **dims}) or 1 for each in self.space.plans}
        whole = sum(savings[each] for each in self.space.plans_of(self.space.all_on))
        return savings[plan] / whole

    def forecast(self, config, dims):
        """What a config should need."""
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
        """What all plans on recompute, as a share of a step without recompute."""
        none, full = (self.small.profiles[config].operations for config in (Config(), self.space.all_on))
        again = sum(operation.seconds for operation in full if operation.phase is Phase.RECOMPUTE)
        return again / sum(operation.seconds for operation in none)

    def forecasts(self, dims):
        """All profiled configs, those that recompute least first."""
        found = [self.forecast(config, dims) for config in self.small.profiles]
        return sorted(found, key=lambda forecast: forecast.recompute_share)

    def effects(self, dims):
        """What each plan does alone, and what leaving it out does."""
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
        """The largest batch whose forecast holds the limit."""
        fitting = (b for b in range(LARGEST_BATCH, 0, -1) if self._peak_at(b, config, dims) <= limit_bytes)
        return next(fitting, 0)

    def plans_by_tensor(self):
        """It knows nothing of tensors."""
        return {}

    def _peak_at(self, batch, config, dims):
        return self.forecast(config, {**dims, "batch": batch}).peak_bytes


class LinearSimulator:
    """The same line for many configs at once.

    Args:
        model: The model of memory.
        dims: The dimensions.
        choices: What each column is about.
    """

    def __init__(self, model, dims, choices):
        self._choices = choices
        self._columns = [next(plan for plan in model.space.plans if choice in plan.choices) for choice in choices]
        self._shares = np.array([model.saved_share(plan, dims) / len(plan.choices) for plan in self._columns])
        self._covers = [[other.site in model.space.covers.get(one.site, ()) for other in choices] for one in choices]
        self.call_seconds = np.zeros(len(choices))
        self.step_error = STEP_ERROR
        self._none, self._full = (model.forecast(config, dims) for config in (Config(), model.space.all_on))

    def matrix(self, configs):
        """A column for each choice."""
        rows = [[config.share_of(plan) for plan in self._columns] for config in configs]
        return np.array(rows, dtype=np.float32).reshape(len(rows), len(self._choices))

    def _covered(self, switches):
        covered = np.zeros_like(switches)
        for column, inside in enumerate(self._covers):
            covered[:, inside] = np.maximum(covered[:, inside], switches[:, [column]])
        return np.minimum(covered, switches)

    def simulate(self, switches):
        """What the configs need."""
        shares = (switches - self._covered(switches)) @ self._shares
        none, full = self._none, self._full
        return Simulated(
            peak_bytes=none.live_bytes + shares * (full.live_bytes - none.live_bytes),
            stash_bytes=none.stash_bytes + shares * (full.stash_bytes - none.stash_bytes),
            recompute_share=shares * full.recompute_share,
        )
