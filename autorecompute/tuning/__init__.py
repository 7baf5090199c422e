"""Conducts a tuning: search proposes, trials measure, the study keeps, the winner is confirmed."""

from __future__ import annotations

from autorecompute.tuning.batches.conductor import BatchTuner
from autorecompute.tuning.progress import Progress
from autorecompute.tuning.settings import TuningSettings, Workplace
from autorecompute.tuning.tuner import Tuner

__all__ = ["BatchTuner", "Progress", "Tuner", "TuningSettings", "Workplace"]
