"""What a study of several batches keeps beside the studies of each: ``batches.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.figures import Figures
from autorecompute.paths import shown
from autorecompute.ranges import LARGEST_BATCH, Batch, Count, Seconds
from autorecompute.result import Result, SearchEnd
from autorecompute.studies.folder import StudyFolder
from autorecompute.studies.names import LONGEST_NAME, is_name
from autorecompute.studies.storage import read_trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial

FILE = "batches.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """How far a study of several batches came.

    Attributes:
        asked: The batches that were asked for; empty where the best one is looked for. Where the study has an answer,
            those that it is the answer to.
        without: What was measured without recompute, in the order it was.
        seconds: Wall time spent on that and on comparing, over all runs.
        max_trials: How many trials the batches shared when the answer was found.
        is_complete: Whether the answer is the last word, and not the best so far.
    """

    asked: tuple[Batch, ...]
    without: tuple[Figures, ...] = ()
    seconds: Seconds = 0.0
    max_trials: Count = 0
    is_complete: bool = False

    def is_answered_by(self, result: Result, max_trials: int) -> bool:
        """Tell whether the answer stands for whoever allows so many trials."""
        more_would_help = result.search_end is SearchEnd.TRIALS and max_trials > self.max_trials
        return self.is_complete and not result.search_end.is_early and not more_would_help


def read_batches(folder: StudyFolder, asked: Sequence[int]) -> BatchRecord:
    """Return what was kept; of a study that was asked for other batches before, what was measured.

    Its answer is still the one to those: ``asked`` stays as it is until there is another answer.

    Raises:
        SetupError: the file cannot be read.
    """
    kept = folder.read(FILE, BatchRecord)
    if kept is None:
        return BatchRecord(asked=tuple(asked))
    if kept.asked == tuple(asked):
        return kept
    return BatchRecord(asked=kept.asked, without=kept.without, seconds=kept.seconds)


def keep_batches(folder: StudyFolder, record: BatchRecord) -> None:
    """Write the record whole or not at all.

    Raises:
        SetupError: the folder cannot be written.
    """
    folder.write(FILE, codec.to_plain(record))


def trials_of_answer(folder: StudyFolder, result: Result) -> list[Trial]:
    """Return the trials that the answer was chosen from: of several batches, those at the batch to train with.

    Args:
        folder: The study.
        result: Its answer.

    Raises:
        SetupError: a storage cannot be read.
    """
    study = folder if not result.curve else _study_at(folder, result)
    return read_trials(study.database, study.name_in_database) if study is not None and study.exists() else []


def _study_at(folder: StudyFolder, result: Result) -> StudyFolder | None:
    batch = result.best.batch if result.best is not None else None
    tuned = {point.batch: point.recomputed.study for point in result.curve if point.recomputed is not None}
    return StudyFolder(tuned[batch], folder.path.parent) if batch in tuned else None


def study_of_batch(folder: StudyFolder, batch: int) -> StudyFolder:
    """Return the study of one of the batches: ``bert-b48`` beside ``bert``."""
    return StudyFolder(f"{folder.name}-b{batch}", folder.path.parent)


def require_names_of_batches(folder: StudyFolder, batches: Sequence[int]) -> None:
    """Check that the name of a study leaves room for those of its batches.

    Args:
        folder: The study.
        batches: Those that are compared; none of them where the best one is looked for.

    Raises:
        UsageError: it is too long.
    """
    suffix = f"-b{max(batches, default=LARGEST_BATCH)}"
    if not is_name(folder.name + suffix):
        raise UsageError(
            f"{shown(folder.name)} is too long a name for a study of several batches. Each batch gets a study of its "
            f"own, called NAME{suffix}: use up to {LONGEST_NAME - len(suffix)} bytes for NAME."
        )
