"""Trials as Optuna has them: which parameters a config has, what a limit is to a sampler, and what failure is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import IntDistribution
from optuna.trial import TrialState, create_trial

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.plans import Config, Level

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from optuna.trial import FrozenTrial

    from autorecompute.plans import Space

CONSTRAINT = "bytes over the limit"
"""The name of the one constraint of every trial: above 0 the config does not fit."""

LEVEL = "level"
"""The parameter that is about ORT's levels; 0 where the plans are chosen one by one."""

TRIAL_ATTRIBUTE = "trial"
"""Where a stored trial keeps all that was measured."""


def distributions_of(names: Iterable[str]) -> dict[str, IntDistribution]:
    """What each parameter can be: a plan is on or off."""
    return {name: IntDistribution(0, max(Level) if name == LEVEL else 1) for name in names}


def parameters_of(config: Config, space: Space) -> dict[str, int]:
    """A config as one parameter a plan, by its key; the level is not among them."""
    return {plan.key: int(config.has(plan)) for plan in space.plans}


def config_of(parameters: Mapping[str, int], space: Space) -> Config:
    """The config of these parameters; where they ask for both options of a subgraph, the one that saves all of it."""
    if level := parameters.get(LEVEL):
        return space.canonical(Config(level=Level(level)))
    config = Config()
    for plan in sorted(space.plans, key=lambda plan: plan.option, reverse=True):
        if parameters.get(plan.key):
            config = config.with_plan(plan)
    return config


def state_of(outcome: Outcome) -> TrialState:
    """What Optuna calls a trial that ended so."""
    return _STATES.get(outcome, TrialState.FAIL)


def violation(measurement: Measurement, limit_bytes: int) -> float:
    """The value of the constraint: bytes above the limit, below 0 where there is room left."""
    if measurement.peak_bytes is not None:
        return float(measurement.peak_bytes - limit_bytes)
    # Without a peak all that is known is that a config which ran out of memory is above the limit.
    return float(limit_bytes) if measurement.outcome.is_about_memory else 0.0


def freeze(
    trial: Trial,
    parameters: Mapping[str, int],
    *,
    value: float | None,
    limit_bytes: int,
    system_attrs: Mapping[str, Any] | None = None,
) -> FrozenTrial:
    """The trial as Optuna keeps it.

    Args:
        trial: What was measured.
        parameters: Its config, as ``parameters_of`` has it, and its level where that is a parameter, too.
        value: What it is to be judged by; left out where it was not measured.
        limit_bytes: What its peak may reach.
        system_attrs: What a sampler keeps with its trials.
    """
    state = state_of(trial.measurement.outcome)
    return create_trial(
        state=state,
        value=value if state is TrialState.COMPLETE else None,
        params=dict(parameters),
        distributions=dict(distributions_of(parameters)),
        constraints={CONSTRAINT: violation(trial.measurement, limit_bytes)},
        system_attrs=dict(system_attrs or {}),
    )


def thaw(frozen: FrozenTrial, space: Space, *, limit_bytes: int, step_seconds: float | None) -> Trial:
    """The trial that Optuna keeps, as far as its parameters and constraint tell; as it was where we stored it.

    Args:
        frozen: A finished trial.
        space: The plans that are its parameters.
        limit_bytes: What the constraint is about.
        step_seconds: The step time that its value stands for; ``None`` where it has none.

    Raises:
        UsageError: the trial has a value and nobody said whether it fits.
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


_STATES = {
    Outcome.OK: TrialState.COMPLETE,
    Outcome.OVER_LIMIT: TrialState.COMPLETE,
    # Optuna's samplers learn from pruned trials and their constraints, and nothing from failed ones.
    Outcome.OOM: TrialState.PRUNED,
}
