"""What viewers of Optuna's studies need to show ours as they are, optuna-dashboard above all."""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import optuna

from autorecompute.studies.frozen import violation
from autorecompute.units import GIB

if TYPE_CHECKING:
    from autorecompute.measurement import Trial

VALUE = "samples/s"
"""The name of what every trial is judged by."""

CONSTRAINTS = "constraints"
"""The only name under which optuna-dashboard 0.21 looks for constraints: that of Optuna before version 5, a list."""


def name_value(study: optuna.Study) -> None:
    """Name what the trials of a study are judged by, which is ``Objective 0`` otherwise."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([VALUE])


def constraint_of(trial: Trial, limit_bytes: int) -> dict[str, Any]:
    """Return the constraint of a trial as system attributes that viewers know: above 0 it is drawn as infeasible."""
    return {CONSTRAINTS: [violation(trial.measurement, limit_bytes)]}


def attributes_of(trial: Trial) -> dict[str, Any]:
    """Return what a viewer shows of a trial beside its parameters, and can draw it by."""
    measurement = trial.measurement
    peak = {} if measurement.peak_bytes is None else {"peak_gib": round(measurement.peak_bytes / GIB, 3)}
    return {
        "config": trial.description,
        "hash": trial.config.hash,
        "outcome": str(measurement.outcome),
        "reason": trial.reason,
        **peak,
    }


def length_of(trial: Trial) -> timedelta:
    """Return how long a trial took."""
    measurement = trial.measurement
    steps = measurement.warmup_seconds + sum(measurement.step_seconds)
    return timedelta(seconds=steps + (trial.overhead_seconds or 0.0))
