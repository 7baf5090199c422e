"""Holds a limit against what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.measurement import Outcome
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from autorecompute.measurement import Measurement, Trial


def hold(trial: Trial, limit_bytes: int) -> Trial:
    """The trial with another limit held against its peak."""
    if not trial.measurement.outcome.is_measured:
        return trial
    measurement = replace(trial.measurement, outcome=Outcome.OK, message="")
    return replace(trial, measurement=judge(measurement, limit_bytes))


def judge(measurement: Measurement, limit_bytes: float) -> Measurement:
    """The measurement with the limit held against its peak."""
    peak = measurement.peak_bytes
    if measurement.outcome is not Outcome.OK or peak is None or peak <= limit_bytes:
        return measurement
    return replace(
        measurement, outcome=Outcome.OVER_LIMIT, message=f"{format_bytes(round(peak - limit_bytes))} over the limit"
    )
