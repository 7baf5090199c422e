"""Conducts a tuning: search proposes, trials measure, the study keeps, the winner is confirmed."""

from __future__ import annotations

from autorecompute.tuning.batches.batch_tuner import BatchTuner
from autorecompute.tuning.context import Progress, TuningContext, TuningSettings
from autorecompute.tuning.session import TuningSession, default_name
from autorecompute.tuning.tuner import Tuner

__all__ = ["BatchTuner", "Progress", "Tuner", "TuningContext", "TuningSession", "TuningSettings", "default_name"]
