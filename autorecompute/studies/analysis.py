"""Detection and profiled steps of a study: ``detection.json`` and ``analysis.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from autorecompute import codec
from autorecompute.memory import StepProfile, StepProfiles
from autorecompute.plans import Config
from autorecompute.ranges import Bytes, PositiveBytes
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from autorecompute.studies.folder import StudyFolder

ANALYSIS_FILE = "analysis.json"
MOST_PROFILES = 4
"""Two are profiled."""


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
    """Return the profiled steps of a study; ``None`` where none were kept.

    Raises:
        SetupError: the file cannot be read.
    """
    kept = folder.read(ANALYSIS_FILE, Analysis)
    return None if kept is None else kept.small


def keep_analysis(folder: StudyFolder, found: StepProfiles) -> None:
    """Write the profiled steps down.

    Raises:
        SetupError: the folder cannot be written.
    """
    profiles = tuple(Profiled(config=config, profile=profile) for config, profile in found.profiles.items())
    kept = Analysis(peak_bytes=found.peak_bytes, held_bytes=found.held_bytes, profiles=profiles)
    folder.write(ANALYSIS_FILE, codec.to_plain(kept))


def share_analysis(known: StudyFolder, folder: StudyFolder, batch: int) -> None:
    """Give a study the profiled steps of another one of the same graph, where that has some that tell of any batch.

    Those of a study whose own batch is smaller than what others profile do not: sizes that it divides by chance are
    taken for multiples of the batch, and where it is one, all of them for constants.

    Args:
        known: The study that may have some.
        folder: The study that wants them.
        batch: At which they tell of any batch.

    Raises:
        SetupError: they cannot be read or written.
    """
    kept = known.read(ANALYSIS_FILE, Analysis)
    if kept is not None and kept.small.batch == batch and folder.read(ANALYSIS_FILE, Analysis) is None:
        folder.write(ANALYSIS_FILE, codec.to_plain(kept))


DETECTION_FILE = "detection.json"


def read_detection(folder: StudyFolder) -> Detection | None:
    """Return the detection of a study; ``None`` where none was kept.

    Raises:
        SetupError: the file cannot be read.
    """
    return folder.read(DETECTION_FILE, Detection)


def keep_detection(folder: StudyFolder, detection: Detection) -> None:
    """Write down what a worker detected, where that tells of the memory of every config.

    Raises:
        SetupError: the folder cannot be written.
    """
    folder.write(DETECTION_FILE, codec.to_plain(detection))
