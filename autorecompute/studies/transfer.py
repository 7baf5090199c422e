"""Finds the study that a tuning may start from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import AutorecomputeError
from autorecompute.result import Transfer
from autorecompute.studies.archive import read_archive, read_archive_head
from autorecompute.studies.folder import list_studies
from autorecompute.studies.problem import Head
from autorecompute.studies.records import StudyRecords, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.studies.folder import StudyFolder

    Note = Callable[[str], None]


ARCHIVE_PATTERN = "*.jsonl.gz"


@dataclass(frozen=True, slots=True)
class StoredStudy:
    """A study that may tell something of a new one, in a folder or in an archive that comes with autorecompute.

    Attributes:
        read: Gives all that it knows.
        foreign: Why its answer is none here, though the problem may be the same, in words; empty where it is one.
    """

    name: str
    head: Head
    read: Callable[[], StudyRecords]
    foreign: str
    is_shipped: bool = False


def find_nearest(head: Head, folder: StudyFolder, note: Note) -> tuple[Transfer, StudyRecords] | None:
    """Return what the nearest study that has measured anything knows; ``None`` where none has the same plans.

    Studies beside the folder, which is no neighbour of its own, come before those that are shipped. Studies that cannot
    be read are passed over, with a note.
    """
    for stored in _ranked(head, folder, note):
        if not head.problem.has_same_plans(stored.head.problem):
            continue
        with _passing_over(stored.name, note):
            records = stored.read()
            if any(trial.measurement.outcome.is_measured for trial in records.trials):
                # What was measured elsewhere is no answer here, however alike it looks.
                differences = (*head.differences(stored.head), *filter(None, [stored.foreign]))
                return Transfer(study=stored.name, differences=differences), records
    return None


def find_most_alike(head: Head, folder: StudyFolder, note: Note) -> StoredStudy | None:
    """Return the study that a problem differs least from; ``None`` where there is no other that can be read."""
    return next(iter(_ranked(head, folder, note)), None)


def shipped_folder() -> Path:
    """Return the folder of the archives: beside the package in a clone, in it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    in_a_clone = package.parent / "studies" / "shipped"
    return in_a_clone if in_a_clone.is_dir() else package / "shipped"


def _ranked(head: Head, folder: StudyFolder, note: Note) -> list[StoredStudy]:
    return sorted(_stored_beside(folder, note), key=lambda study: (_distance(head, study), study.name))


def _stored_beside(folder: StudyFolder, note: Note) -> Iterator[StoredStudy]:
    for other in list_studies(folder.path.parent):
        if other.name != folder.name:
            with _passing_over(other.name, note):
                head, read = other.head(), functools.partial(read_records, other)
                elsewhere = "" if other.is_of_this_machine else "it was measured on another machine"
                foreign = "it was imported" if other.is_imported else elsewhere
                yield StoredStudy(other.name, head, read, foreign)
    for file in sorted(shipped_folder().glob(ARCHIVE_PATTERN)):
        name, foreign = file.name.partition(".")[0], "shipped with autorecompute"
        with _passing_over(name, note):
            head, read = read_archive_head(file), functools.partial(read_archive, file)
            yield StoredStudy(name, head, read, foreign, is_shipped=True)


@contextmanager
def _passing_over(name: str, note: Note) -> Iterator[None]:
    """Leave a study out that cannot be read, with a note: the new study goes on without it."""
    try:
        yield
    except AutorecomputeError as error:
        note(f"study {name} is passed over: {error}")


def _distance(mine: Head, stored: StoredStudy) -> tuple[float, ...]:
    """Return the distance: first by what changes graph or machine, then by the factors between sizes."""
    theirs = stored.head
    kinds = ("graph", "device", "torch", "device_bytes")
    seen = mine.problem.seen_here(theirs.problem)
    changed = [float(getattr(mine.problem, kind) != getattr(seen, kind)) for kind in kinds]
    pairs = [
        (mine.problem.batch, theirs.problem.batch),
        (mine.problem.limit_bytes, theirs.problem.limit_bytes),
        *((size, theirs.sizes.dims.get(name, 1)) for name, size in mine.sizes.dims.items()),
    ]
    factors = sum(abs(math.log(max(mine_size, 1) / max(their_size, 1))) for mine_size, their_size in pairs)
    others = float(not mine.problem.has_same_plans(theirs.problem)), float(stored.is_shipped)
    return (*others, *changed, factors, float(mine.command != theirs.command), float(bool(stored.foreign)))
