"""Studies on disk: the problem they solve, their Optuna storage, their folder. Knows nothing of ORT."""

from __future__ import annotations

from autorecompute.studies.folder import StudyFolder
from autorecompute.studies.problem import Problem, Sizes
from autorecompute.studies.stored import list_studies, load_result

__all__ = ["Problem", "Sizes", "StudyFolder", "list_studies", "load_result"]
