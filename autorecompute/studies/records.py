"""All that a study knows, in memory: read from its folder, and written to a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.errors import SetupError
from autorecompute.measurement import Trial
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies import analysis as analysis_file
from autorecompute.studies import batch_studies as batches_file
from autorecompute.studies import detected as detection_file
from autorecompute.studies import race_record as race_file
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.batch_studies import BatchRecord
from autorecompute.studies.problem import SEVERAL_BATCHES, Head
from autorecompute.studies.race_record import RaceRecord
from autorecompute.studies.shared_folder import shared_from
from autorecompute.studies.storage import SECONDS_ATTRIBUTE, TrialStore, read_trials
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from autorecompute.studies.folder import StudyFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """A study without its folder.

    Attributes:
        head: What it is about.
        trials: What it measured.
        rejections: The configs that were not confirmed.
        confirmed: Those that were.
        race: The finalists' rounds.
        batches: What only a study of several batches knows.
        analysis: The profiled small steps.
        detection: What was detected, where that tells of the memory of every config.
        result: The answer.
    """

    head: Head
    trials: tuple[Trial, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()
    race: RaceRecord | None = None
    batches: BatchRecord | None = None
    analysis: Analysis | None = None
    detection: Detection | None = None
    result: Result | None = None


def trials_of(folder: StudyFolder) -> list[Trial]:
    """Return the trials of a study, in the order they ended.

    Raises:
        SetupError: they cannot be read, or their file is gone.
    """
    require_database(folder)
    return read_trials(folder.database, folder.name_in_database)


def require_database(folder: StudyFolder) -> None:
    """Check that a study which measured something has the file of its trials.

    Raises:
        SetupError: it is gone.
    """
    if folder.database.is_file() or folder.problem().batch == SEVERAL_BATCHES:
        return
    result = folder.result()
    # A folder of a shared study has it when its worker has ended.
    has_trials = shared_from(folder) is None and bool(folder.kept_trials())
    if has_trials or (result is not None and result.trials):
        raise SetupError(
            f"{folder.database} is missing, and the trials of study '{folder.name}' with it. Restore it, or begin a "
            "new study with --study NAME."
        )


def read_records(folder: StudyFolder) -> StudyRecords:
    """Return all that a study knows.

    Raises:
        UsageError: there is no such study, or another version made it.
        SetupError: a part of it cannot be read.
    """
    return StudyRecords(
        head=folder.head(),
        trials=tuple(trials_of(folder)),
        rejections=tuple(folder.rejections()),
        confirmed=tuple(folder.confirmed()),
        race=folder.read(race_file.FILE, RaceRecord),
        batches=folder.read(batches_file.FILE, BatchRecord),
        analysis=folder.read(analysis_file.FILE, Analysis),
        detection=folder.read(detection_file.FILE, Detection),
        result=folder.result(),
    )


def write_records(records: StudyRecords, folder: StudyFolder) -> None:
    """Fill the folder of a study that is not there yet.

    Args:
        records: What it is to know; names in them are those of the folder already.
        folder: Where it is to be.

    Raises:
        SetupError: it cannot be written.
    """
    folder.prepare()
    folder.keep_head(records.head, is_imported=True)
    _store_trials(records, folder)
    if records.rejections:
        folder.keep_rejections(records.rejections)
    if records.confirmed:
        folder.keep_confirmed(records.confirmed)
    parts = {
        race_file.FILE: records.race,
        analysis_file.FILE: records.analysis,
        detection_file.FILE: records.detection,
        batches_file.FILE: records.batches,
    }
    for name, part in parts.items():
        if part is not None:
            folder.write(name, codec.to_plain(part))
    if records.result is not None:
        folder.finish(records.result)


def _store_trials(records: StudyRecords, folder: StudyFolder) -> None:
    problem = records.head.problem
    store = TrialStore(folder.database, folder.name_in_database, records.head.sizes.space, problem.limit_bytes)
    for trial in records.trials:
        store.add(trial)
    if records.result is not None:
        store.set_attribute(SECONDS_ATTRIBUTE, records.result.wall_seconds)
