"""Studies on disk: the problem they solve, their Optuna storage, their folder. Knows no training system."""

from __future__ import annotations

from autorecompute.studies.folder import StudyFolder, list_studies
from autorecompute.studies.problem import Problem, Sizes

__all__ = ["Problem", "Sizes", "StudyFolder", "list_studies"]
