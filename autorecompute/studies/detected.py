"""What a worker detected, where that tells of the memory of every config: ``detection.json``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from autorecompute.studies.folder import StudyFolder

FILE = "detection.json"


def read_detection(folder: StudyFolder) -> Detection | None:
    """Return the detection of a study; ``None`` where none was kept.

    Raises:
        SetupError: the file cannot be read.
    """
    return folder.read(FILE, Detection)


def keep_detection(folder: StudyFolder, detection: Detection) -> None:
    """Write it down.

    Raises:
        SetupError: the folder cannot be written.
    """
    folder.write(FILE, codec.to_plain(detection))
