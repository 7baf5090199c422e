"""All that a study knows, in memory: read from its folder, and written to a new one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.errors import SetupError
from autorecompute.measurement import Trial
from autorecompute.result import Best, Ranking, Rejection, Result
from autorecompute.studies import batches as batches_file
from autorecompute.studies.batches import BatchRecord
from autorecompute.studies.folder import FORMAT
from autorecompute.studies.problem import SEVERAL_BATCHES, Problem, Sizes
from autorecompute.studies.sharing.mirror import shared_from
from autorecompute.studies.storage import SECONDS_ATTRIBUTE, TrialStore, read_trials

if TYPE_CHECKING:
    from autorecompute.studies.folder import StudyFolder

RACE, ANALYSIS = "race.json", "analysis.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a study is about, and where it comes from.

    Attributes:
        study: Its name.
        created: When it was begun, in UTC.
        autorecompute: The version that began it.
        command: The command that was tuned.
        problem: The problem.
        sizes: The sizes that it was met at.
    """

    study: str
    created: str
    autorecompute: str
    command: tuple[str, ...]
    problem: Problem
    sizes: Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """A finalist in one round of a race.

    Attributes:
        step_seconds: Its timed steps.
        reference_seconds: Those of the reference in the same round; empty where there was none.
        marks: What else happened meanwhile, in words.
    """

    step_seconds: tuple[float, ...]
    reference_seconds: tuple[float, ...] = ()
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRecord:
    """A finalist.

    Attributes:
        trial: Number of its trial.
        description: What it recomputes, in a few words.
        peak_bytes: Its highest peak.
        rounds: Its rounds.
    """

    trial: int
    description: str
    peak_bytes: int
    rounds: tuple[RoundRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceRecord:
    """What ``race.json`` holds.

    Attributes:
        ranking: How the race ended; ``None`` where it did not end.
        standings: The finalists, the winner first.
        over_limit: Numbers of the finalists that were over the limit in a round.
        failed: Numbers of those that were not measured in one.
        trials: How many trials the study had: with others, others might have raced.
    """

    ranking: Ranking | None
    standings: tuple[StandingRecord, ...]
    over_limit: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    trials: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecords:
    """A study without its folder.

    Attributes:
        head: What it is about.
        trials: What it measured.
        rejections: The configs that were not confirmed.
        confirmed: Those that were.
        race: The finalists' rounds, as their file has them.
        batches: What only a study of several batches knows.
        analysis: The profiled small steps, as their file has them.
        result: The answer.
    """

    head: Head
    trials: tuple[Trial, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    confirmed: tuple[Best, ...] = ()
    race: dict[str, Any] | None = None
    batches: BatchRecord | None = None
    analysis: dict[str, Any] | None = None
    result: Result | None = None


def read_head(folder: StudyFolder) -> Head:
    """What a study is about.

    Raises:
        UsageError: there is no such study, or another version made it.
        SetupError: it cannot be read.
    """
    provenance = folder.provenance()
    return Head(
        study=folder.name,
        created=str(provenance.get("created", "")),
        autorecompute=str(provenance.get("autorecompute", "")),
        command=tuple(folder.command()),
        problem=folder.problem(),
        sizes=folder.sizes(),
    )


def trials_of(folder: StudyFolder) -> list[Trial]:
    """The trials of a study, in the order they ended.

    Raises:
        SetupError: they cannot be read, or their file is gone.
    """
    require_database(folder)
    return read_trials(folder.database, folder.name_in_database)


def require_database(folder: StudyFolder) -> None:
    """Checks that a study which measured something has the file of its trials.

    Raises:
        SetupError: it is gone.
    """
    if folder.database.is_file() or folder.problem().batch == SEVERAL_BATCHES:
        return
    result = folder.result()
    # A folder of a shared study has it when its worker has ended.
    has_trials = shared_from(folder) is None and any(folder.path.glob("trials/*/result.json"))
    if has_trials or (result is not None and result.trials):
        raise SetupError(
            f"{folder.database} is missing, and the trials of study '{folder.name}' with it. Restore it, or begin a "
            "new study with --study NAME."
        )


def read_records(folder: StudyFolder) -> StudyRecords:
    """All that a study knows.

    Raises:
        UsageError: there is no such study, or another version made it.
        SetupError: a part of it cannot be read.
    """
    return StudyRecords(
        head=read_head(folder),
        trials=tuple(trials_of(folder)),
        rejections=tuple(folder.rejections()),
        confirmed=tuple(folder.confirmed()),
        race=folder.read(RACE, dict[str, Any]),
        batches=folder.read(batches_file.FILE, BatchRecord),
        analysis=folder.read(ANALYSIS, dict[str, Any]),
        result=folder.result(),
    )


def write_records(records: StudyRecords, folder: StudyFolder) -> None:
    """Fills the folder of a study that is not there yet.

    Args:
        records: What it is to know; names in them are those of the folder already.
        folder: Where it is to be.

    Raises:
        SetupError: it cannot be written.
    """
    folder.prepare()
    _write_provenance(records.head, folder)
    _store_trials(records, folder)
    if records.rejections:
        folder.keep_rejections(records.rejections)
    if records.confirmed:
        folder.keep_confirmed(records.confirmed)
    for name, content in ((RACE, records.race), (ANALYSIS, records.analysis), (batches_file.FILE, records.batches)):
        if content is not None:
            folder.write(name, codec.to_plain(content))
    if records.result is not None:
        folder.finish(records.result)


def _write_provenance(head: Head, folder: StudyFolder) -> None:
    provenance = {"format": FORMAT, "digest": head.problem.digest, "is_imported": True, **codec.to_plain(head)}
    folder.write("study.json", provenance)


def _store_trials(records: StudyRecords, folder: StudyFolder) -> None:
    problem = records.head.problem
    store = TrialStore(folder.database, folder.name_in_database, records.head.sizes.space, problem.limit_bytes)
    for trial in records.trials:
        store.add(trial)
    if records.result is not None:
        store.set_attribute(SECONDS_ATTRIBUTE, records.result.wall_seconds)
