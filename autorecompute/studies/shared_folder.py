"""What a worker's folder knows of the study that it shares: where it is and, at the end, the trials of all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.studies.storage import SECONDS_ATTRIBUTE, TrialStore, read_trials
from autorecompute.studies.writing import saying_what_fails
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Space
    from autorecompute.studies.folder import StudyFolder
    from autorecompute.studies.problem import Problem


SHARED = "shared.json"
FOUNDING, PLACE = "study", "storage"


def share(folder: StudyFolder, founding: str, place: str) -> None:
    """Write down which shared study a folder belongs to, and where that is.

    Raises:
        SetupError: it cannot be written.
    """
    folder.write(SHARED, {FOUNDING: founding, PLACE: place})


def shared_from(folder: StudyFolder) -> str | None:
    """Return the shared study that a folder belongs to; ``None`` for a study of its own."""
    known = folder.read(SHARED, dict[str, str])
    return None if known is None else known.get(FOUNDING, "")


def required_of(folder: StudyFolder) -> str | None:
    """Return the founding of the folder's study, which no storage has where that is not shared.

    ``None`` where no study was begun in the folder, and any will do.
    """
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
    """Write the database of a folder anew: whole or not at all, for other workers may have the same folder.

    Raises:
        SetupError: it cannot be written.
    """
    draft = folder.database.with_name(f".study.{session}.db")
    with saying_what_fails(draft):
        try:
            store = TrialStore(draft, folder.name_in_database, space, problem.limit_bytes)
            for trial in trials:
                store.add(trial)
            result = folder.result()
            if result is not None:
                store.set_attribute(SECONDS_ATTRIBUTE, result.wall_seconds)
            draft.replace(folder.database)
        finally:
            draft.unlink(missing_ok=True)
