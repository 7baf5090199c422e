"""The trials of a shared study in the database of one worker's folder, where all that reads a study finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.studies.folder import saying_what_fails
from autorecompute.studies.storage import SECONDS_ATTRIBUTE, TrialStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.measurement import Trial
    from autorecompute.plans import Space
    from autorecompute.studies.folder import StudyFolder
    from autorecompute.studies.problem import Problem


SHARED = "shared.json"


def share(folder: StudyFolder, founding: str) -> None:
    """Writes down which shared study a folder belongs to.

    Raises:
        SetupError: it cannot be written.
    """
    folder.write(SHARED, {"study": founding})


def shared_from(folder: StudyFolder) -> str | None:
    """The shared study that a folder belongs to; ``None`` for a study of its own."""
    known = folder.read(SHARED, dict[str, str])
    return None if known is None else known.get("study", "")


def write_mirror(folder: StudyFolder, trials: Sequence[Trial], space: Space, problem: Problem, session: str) -> None:
    """Writes the database of a folder anew: whole or not at all, for other workers may have the same folder.

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
