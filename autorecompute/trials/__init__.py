"""Starts and supervises workers, and names how trials end. Knows nothing of how a config was chosen."""

from __future__ import annotations

from autorecompute.trials.bench import Bench, following
from autorecompute.trials.job import Job

__all__ = ["Bench", "Job", "following"]
