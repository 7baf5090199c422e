"""Trials as Optuna has them: which parameters a config has, what a limit is to a sampler, and what failure is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from autorecompute.plans import Plan, Space

CONSTRAINT = "bytes over the limit"  # the name of the one constraint of every trial: above 0 the config does not fit
PRESET = "preset"  # the parameter that is about opaque presets; empty where the plans are chosen one by one
TRIAL_ATTRIBUTE = "trial"  # key under which a stored trial keeps its measurement


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    """Return the distribution of each plan's count of occurrences, and of the opaque preset where there are any."""
    found: dict[str, BaseDistribution] = {plan.id: IntDistribution(0, _most(plan)) for plan in space.plans}
    if opaque := space.opaque_presets:
        found[PRESET] = CategoricalDistribution(("", *opaque))
    return found


def parameters_of(config: Config, space: Space) -> dict[str, Any]:
    """Return a config as one parameter a plan, by its id, and the opaque preset where there are such."""
    counts: dict[str, Any] = {plan.id: min(config.count_of(plan), _most(plan)) for plan in space.plans}
    if opaque := space.opaque_presets:
        counts[PRESET] = next((name for name, preset in opaque.items() if preset == config), "")
    return counts


def config_of(parameters: Mapping[str, Any], space: Space) -> Config:
    """Return the config of these parameters; of plans that exclude each other, the preferred one is on."""
    if preset := parameters.get(PRESET):
        return space.opaque_presets[preset]
    config = Config()
    for plan in reversed(space.plans):
        if count := parameters.get(plan.id):
            config = space.with_plan(config, plan, count if plan.counts else None)
    return config


def _most(plan: Plan) -> int:
    return max(plan.occurrences, 1) if plan.counts else 1


def state_of(outcome: Outcome) -> TrialState:
    """Return Optuna's state of a trial that ended so."""
    if outcome.is_measured:
        return TrialState.COMPLETE
    # Optuna's samplers learn from pruned trials and their constraints, and nothing from failed ones.
    return TrialState.PRUNED if outcome is Outcome.OOM else TrialState.FAIL


def violation(measurement: Measurement, limit_bytes: int) -> float:
    """Return the value of the constraint: bytes above the limit, below 0 where there is room left."""
    if measurement.peak_bytes is not None:
        return float(measurement.peak_bytes - limit_bytes)
    # Without a peak all that is known is that a config which ran out of memory is above the limit.
    return float(limit_bytes) if measurement.outcome.is_about_memory else 0.0


def freeze(
    trial: Trial, space: Space, *, value: float | None, limit_bytes: int, system_attrs: Mapping[str, Any] | None = None
) -> FrozenTrial:
    """Return the trial as Optuna keeps it, judged by a value if it was measured."""
    state = state_of(trial.measurement.outcome)
    return create_trial(
        state=state,
        value=value if state is TrialState.COMPLETE else None,
        params=parameters_of(trial.config, space),
        distributions=distributions_of(space),
        constraints={CONSTRAINT: violation(trial.measurement, limit_bytes)},
        system_attrs=dict(system_attrs or {}),
    )


def thaw(frozen: FrozenTrial, space: Space, *, limit_bytes: int, step_seconds: float | None) -> Trial:
    """Return the trial that Optuna keeps, as far as its parameters and constraint tell; as it was where we stored it.

    Its value stands for a step time. A ``UsageError`` says of one with a value that nobody told whether it fits.
    """
    if TRIAL_ATTRIBUTE in frozen.user_attrs:
        return codec.from_plain(frozen.user_attrs[TRIAL_ATTRIBUTE], Trial)
    config = config_of(frozen.params, space)
    return Trial(
        number=frozen.number,
        config=config,
        description=space.describe(config),
        reason="",
        measurement=_measurement(frozen, limit_bytes, step_seconds),
    )


def _measurement(frozen: FrozenTrial, limit_bytes: int, step_seconds: float | None) -> Measurement:
    if step_seconds is None:
        outcome = Outcome.OOM if frozen.state is TrialState.PRUNED else Outcome.SCRIPT_ERROR
        return Measurement(outcome=outcome)
    excess = frozen.constraints.get(CONSTRAINT)
    if excess is None:
        raise UsageError(
            f"Trial {frozen.number} does not say whether it fits. Call "
            f"trial.set_constraint('{CONSTRAINT}', peak_bytes - limit_bytes) in the objective."
        )
    outcome = Outcome.OVER_LIMIT if excess > 0 else Outcome.OK
    peak_bytes = limit_bytes + round(excess)
    return Measurement(outcome=outcome, peak_bytes=peak_bytes, step_seconds=(step_seconds,), samples=1)
