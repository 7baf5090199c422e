"""Setups as fresh processes: the variables they train under, and what comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends import emission_of
from autorecompute.studies import KnobFolder
from autorecompute.studies.folder import write_atomically
from autorecompute.tuning.budget import Task

if TYPE_CHECKING:
    from pathlib import Path

    from autorecompute.knobs import Setup
    from autorecompute.measurement import Detection, Measurement
    from autorecompute.tuning.budget import Budget
    from autorecompute.tuning.settings import Workplace


class Setups:
    """Trains with setups, one fresh process at a time.

    Args:
        place: What it works with.
        budget: Learns how long a fresh process takes.
        detection: What the job is.
    """

    def __init__(self, place: Workplace, budget: Budget, detection: Detection) -> None:
        self._bench, self._folder, self._settings = place.bench, KnobFolder(place.folder), place.settings
        self._budget = budget
        self._emission = emission_of(detection.versions["backend"])
        self._ort_version = detection.versions["onnxruntime"]

    def run(self, setup: Setup) -> Measurement:
        """What a fresh process measures that trains under nothing but the setup's variables."""
        environment = self.emit(setup, self._folder.plans_file(setup.config.hash))
        with self._budget.timing(Task.CONFIRMATION):
            return self._bench.watch(environment, self._settings.effort, self._settings.batch)

    def emit(self, setup: Setup, plans_file: Path) -> dict[str, str]:
        """The setup's variables, the plans file among them written."""
        write_atomically(plans_file, self._emission.plans_file_text(setup.config))
        environment = self._emission.environment_for(setup.config, ort_version=self._ort_version, plans_file=plans_file)
        return {**environment, **setup.knobs}
