"""Detection and profiled steps of a study: ``detection.json`` and ``analysis.json``.

Whatever reads or writes them raises ``SetupError`` where that fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute.memory import StepProfile, StepProfiles
from autorecompute.plans import Config
from autorecompute.plans.savings import BATCH
from autorecompute.ranges import Bytes, PositiveBytes
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from autorecompute.studies.folder import StudyFolder

ANALYSIS_FILE, DETECTION_FILE = "analysis.json", "detection.json"
MOST_PROFILES = 4  # two are profiled


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """A profiled step."""

    config: Annotated[Config, "What it recomputed."]
    profile: Annotated[StepProfile, "What was seen of it."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Contents of the file."""

    peak_bytes: Annotated[PositiveBytes, "Peak of the process in the step without recompute."]
    held_bytes: Annotated[Bytes, "What it held before that step."]
    profiles: Annotated[tuple[Profiled, ...], "The steps."]

    def __post_init__(self) -> None:
        if all(entry.config != Config() for entry in self.profiles):
            raise ValueError("holds no step without recompute")
        if len(self.profiles) > MOST_PROFILES:
            raise ValueError(f"holds {len(self.profiles)} steps, {MOST_PROFILES} is the most")

    @property
    def small(self) -> StepProfiles:
        """Return the same, by config."""
        profiles = {entry.config: entry.profile for entry in self.profiles}
        return StepProfiles(peak_bytes=self.peak_bytes, held_bytes=self.held_bytes, profiles=profiles)


def read_analysis(folder: StudyFolder) -> StepProfiles | None:
    """Return the profiled steps of a study; ``None`` where none were kept."""
    kept = folder.read(ANALYSIS_FILE, Analysis)
    return None if kept is None else kept.small


def keep_analysis(folder: StudyFolder, found: StepProfiles) -> None:
    """Write the profiled steps down."""
    profiles = tuple(Profiled(config=config, profile=profile) for config, profile in found.profiles.items())
    folder.write(ANALYSIS_FILE, Analysis(peak_bytes=found.peak_bytes, held_bytes=found.held_bytes, profiles=profiles))


def share_analysis(known: StudyFolder, folder: StudyFolder, batch: int) -> None:
    """Give a study the profiled steps of another one of the same graph, where that has some at this batch.

    Those of a study whose own batch is smaller than what others profile do not tell of any batch: sizes that it divides
    by chance are taken for multiples of the batch, and where it is one, all of them for constants.
    """
    kept = read_analysis(known)
    if kept is None or kept.profiles[Config()].dims.get(BATCH) != batch:
        return
    if read_analysis(folder) is None:
        keep_analysis(folder, kept)


def read_detection(folder: StudyFolder) -> Detection | None:
    """Return the detection of a study; ``None`` where none was kept."""
    return folder.read(DETECTION_FILE, Detection)


def keep_detection(folder: StudyFolder, detection: Detection) -> None:
    """Write down what a worker detected, where that tells of the memory of every config."""
    folder.write(DETECTION_FILE, detection)
