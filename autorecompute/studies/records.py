"""The records of a study beside its trials.

Whatever reads or writes them raises ``SetupError`` where that fails.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from autorecompute.errors import SetupError, UsageError
from autorecompute.figures import Figures, Ranking
from autorecompute.files import shown
from autorecompute.measurement import Trial
from autorecompute.ranges import LARGEST_BATCH, Batch, Count, Number, PositiveBytes, Seconds, StepSeconds
from autorecompute.result import Best, Rejection, Result, SearchEnd
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.folder import LONGEST_NAME, StudyFolder, is_name, saying_what_fails
from autorecompute.studies.problem import SEVERAL_BATCHES, Head
from autorecompute.studies.storage import TrialStore, read_trials
from autorecompute.training_job import Detection
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autorecompute.plans import Space
    from autorecompute.studies.problem import Problem


RACE_FILE = "race.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A finalist in one round of a race."""

    step_seconds: Annotated[tuple[StepSeconds, ...], "Its timed steps."]
    cpu_seconds: Annotated[tuple[StepSeconds, ...], "The same in processor time; empty on other devices."] = ()
    reference_seconds: Annotated[tuple[StepSeconds, ...], "The reference's steps in the same round, if any."] = ()
    reference_cpu_seconds: Annotated[tuple[StepSeconds, ...], "The same in processor time."] = ()
    is_disturbed: Annotated[bool, "True if other processes disturbed this round: it is no evidence."] = False
    marks: Annotated[tuple[str, ...], "What else happened meanwhile, in words."] = ()

    def __post_init__(self) -> None:
        if not self.step_seconds:
            raise ValueError("is a round without a timed step")

    @property
    def seconds(self) -> float:
        """Return the median step: wall time, or processor time where the round was disturbed."""
        return statistics.median(self.cpu_seconds if self.is_disturbed and self.cpu_seconds else self.step_seconds)

    @property
    def ratio(self) -> float | None:
        """Return the reference's step time over its own, on the same clock; ``None`` if the round had no reference."""
        is_cpu_time = self.is_disturbed and self.cpu_seconds
        reference = self.reference_cpu_seconds if is_cpu_time else self.reference_seconds
        return statistics.median(reference) / self.seconds if reference else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRecord:
    """A finalist."""

    trial: Annotated[Number, "Number of its trial."]
    description: Annotated[str, "What it recomputes, in a few words."]
    peak_bytes: Annotated[PositiveBytes, "Its highest peak."]
    rounds: Annotated[tuple[RoundRecord, ...], "Its rounds."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRecord:
    """Contents of ``race.json``."""

    ranking: Annotated[Ranking | None, "How the race ended; ``None`` where it did not end."]
    standings: Annotated[tuple[StandingRecord, ...], "The finalists, the winner first."]
    over_limit: Annotated[tuple[StandingRecord, ...], "The finalists over the limit in their last round."] = ()
    failed: Annotated[tuple[Number, ...], "Numbers of those that were not measured in one."] = ()
    trials: Annotated[Number, "How many trials the study had: with others, others might have raced."] = 0


BATCHES_FILE = "batches.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Progress of a study of several batches."""

    asked: Annotated[
        tuple[Batch, ...], "Batches asked for, or that the answer is to; empty where the best is looked for."
    ]
    without: Annotated[tuple[Figures, ...], "What was measured without recompute, in the order it was."] = ()
    unsplittable: Annotated[
        str | None, "Why two halves of a batch train otherwise; empty where they do not, ``None`` where nobody looked."
    ] = None
    usual: Annotated[Figures | None, "Gradient checkpointing of all blocks at its own best micro-batch, if run."] = None
    seconds: Annotated[Seconds, "Wall time spent on that and on comparing, over all runs."] = 0.0
    max_trials: Annotated[Count, "How many trials the batches shared when the answer was found."] = 0
    is_complete: Annotated[bool, "Whether the answer is the last word, and not the best so far."] = False

    def is_answered_by(self, result: Result, max_trials: int) -> bool:
        """Tell whether the answer stands for whoever allows so many trials."""
        more_would_help = result.search_end is SearchEnd.TRIALS and max_trials > self.max_trials
        return self.is_complete and not result.search_end.is_early and not more_would_help


def read_batches(folder: StudyFolder, asked: Sequence[int]) -> BatchRecord:
    """Read the record; of a study that was asked for other batches before, keep the measurements.

    Its answer is still the one to those: ``asked`` stays as it is until there is another answer.
    """
    kept = folder.read(BATCHES_FILE, BatchRecord)
    if kept is None:
        return BatchRecord(asked=tuple(asked))
    if kept.asked == tuple(asked):
        return kept
    return BatchRecord(
        asked=kept.asked, without=kept.without, usual=kept.usual, unsplittable=kept.unsplittable, seconds=kept.seconds
    )


def trials_of_answer(folder: StudyFolder, result: Result) -> list[Trial]:
    """Return the trials that the answer was chosen from: of several batches, those at the batch to train with."""
    if result.curve:
        tuned = {point.batch: point.recomputed.study for point in result.curve if point.recomputed is not None}
        if result.best is None or result.best.batch not in tuned:
            return []
        folder = StudyFolder(tuned[result.best.batch], folder.path.parent)
    return read_trials(folder.database, folder.name_in_database) if folder.exists() else []


def study_of_batch(folder: StudyFolder, batch: int) -> StudyFolder:
    """Return the study of one of the batches: ``bert-b48`` beside ``bert``."""
    return StudyFolder(f"{folder.name}-b{batch}", folder.path.parent)


def require_names_of_batches(folder: StudyFolder, batches: Sequence[int]) -> None:
    """Check that the name of a study leaves room for those of its batches; none are given where the best is sought."""
    suffix = f"-b{max(batches, default=LARGEST_BATCH)}"
    if not is_name(folder.name + suffix):
        raise UsageError(
            f"{shown(folder.name)} is too long a name for a study of several batches. Each batch gets a study of its "
            f"own, called NAME{suffix}: use up to {LONGEST_NAME - len(suffix)} bytes for NAME."
        )


SHARED = "shared.json"
FOUNDING, PLACE = "study", "storage"


def note_shared(folder: StudyFolder, founding: str, place: str) -> None:
    """Write down which shared study a folder belongs to, and where that is."""
    folder.write(SHARED, {FOUNDING: founding, PLACE: place})


def shared_from(folder: StudyFolder) -> str | None:
    """Return the shared study that a folder belongs to; ``None`` for a study of its own."""
    known = folder.read(SHARED, dict[str, str])
    return None if known is None else known.get(FOUNDING, "")


def required_of(folder: StudyFolder) -> str | None:
    """Return the founding of the folder's study, empty if it is not shared; ``None`` where none was begun."""
    return (shared_from(folder) or "") if folder.exists() else None


def place_of(folder: StudyFolder) -> str | None:
    """Return the storage that a folder's study is shared in, in words; ``None`` for a study of its own."""
    known = folder.read(SHARED, dict[str, str])
    return None if known is None else printable(known.get(PLACE, "a storage"), keeps="")


def describe_missing(folder: StudyFolder) -> str:
    """Return a sentence on trials that a folder lacks, for its worker has not ended; empty where it has all."""
    place = place_of(folder)
    if place is None:
        return ""
    kept = {trial.number for trial in read_trials(folder.database, folder.name_in_database)}
    if folder.database.is_file() and folder.kept_trials() <= kept:
        return ""
    return (
        f"Study '{folder.name}' is shared: its trials are in {place}, and come into this folder when its worker ends."
    )


def keep_trials(folder: StudyFolder, trials: Sequence[Trial], space: Space, problem: Problem, session: str) -> None:
    """Write the database of a folder anew: whole or not at all, for other workers may have the same folder."""
    draft = folder.database.with_name(f".study.{session}.db")
    with saying_what_fails(draft):
        try:
            _store(draft, folder, trials, space, problem, folder.result())
            draft.replace(folder.database)
        finally:
            draft.unlink(missing_ok=True)


def _store(  # noqa: PLR0913, PLR0917  (all that a database holds)
    database: Path, folder: StudyFolder, trials: Sequence[Trial], space: Space, problem: Problem, result: Result | None
) -> None:
    store = TrialStore(database, folder.name_in_database, space, problem.limit_bytes)
    for trial in trials:
        store.add(trial)
    if result is not None:
        store.keep_seconds(result.wall_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """A study without its folder: its head, its trials, its configs that were confirmed or not, and its files."""

    head: Head
    trials: tuple[Trial, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()
    race: RaceRecord | None = None
    batches: BatchRecord | None = None
    analysis: Analysis | None = None
    detection: Detection | None = None
    result: Result | None = None


FILES: dict[str, type[Any]] = {
    "race": RaceRecord,
    "batches": BatchRecord,
    "analysis": Analysis,
    "detection": Detection,
    "result": Result,
}
"""The files of which a study has one at most, without ``.json``."""


def trials_of(folder: StudyFolder) -> list[Trial]:
    """Return the trials of a study, in the order they ended."""
    require_database(folder)
    return read_trials(folder.database, folder.name_in_database)


def require_database(folder: StudyFolder) -> None:
    """Check that a study which measured something has the file of its trials."""
    if folder.database.is_file() or folder.head().problem.batch == SEVERAL_BATCHES:
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
    """Return all that a study knows."""
    return StudyRecords(
        head=folder.head(),
        trials=tuple(trials_of(folder)),
        rejections=tuple(folder.rejections()),
        confirmed=tuple(folder.confirmed()),
        **{name: folder.read(f"{name}.json", kind) for name, kind in FILES.items() if kind is not Result},
        result=folder.result(),
    )


def write_records(records: StudyRecords, folder: StudyFolder) -> None:
    """Fill the folder of a study that is not there yet; names in its records are those of the folder already."""
    folder.prepare()
    folder.keep_head(records.head, is_imported=True)
    head = records.head
    _store(folder.database, folder, records.trials, head.sizes.space, head.problem, records.result)
    if records.rejections:
        folder.keep_rejections(records.rejections)
    if records.confirmed:
        folder.keep_confirmed(records.confirmed)
    for name in FILES:
        if (part := getattr(records, name)) is not None:
            folder.write(f"{name}.json", part)
