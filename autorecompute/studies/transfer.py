"""Finds the study that a tuning may start from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from autorecompute.errors import AutorecomputeError
from autorecompute.studies.archive import read_archive, read_archive_head
from autorecompute.studies.folder import list_studies
from autorecompute.studies.records import StudyRecords, read_records
from autorecompute.studies.tuned import Tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autorecompute.studies.folder import StudyFolder
    from autorecompute.studies.problem import Head


T = TypeVar("T")

ARCHIVE_PATTERN = "*.jsonl.gz"


class Source(Protocol):
    """A stored study that may tell something of a new one."""

    @property
    def name(self) -> str:
        """Return its name."""
        ...

    @property
    def is_shipped(self) -> bool:
        """Tell whether it comes with autorecompute."""
        ...

    @property
    def foreign(self) -> str:
        """Return why its answer is none here, though the problem may be the same, in words; empty where it is one."""
        ...

    def read_head(self) -> Head:
        """Return its head."""
        ...

    def read_records(self) -> StudyRecords:
        """Return all that it knows."""
        ...


class FolderSource:
    """A study in a folder.

    Args:
        folder: The folder.
    """

    is_shipped = False

    def __init__(self, folder: StudyFolder) -> None:
        self._folder, self.name = folder, folder.name

    @property
    def foreign(self) -> str:
        """Tell whether it was imported, or was measured on another machine."""
        if self._folder.is_imported:
            return "it was imported"
        return "" if self._folder.is_of_this_machine else "it was measured on another machine"

    def read_head(self) -> Head:
        """Return its head."""
        return self._folder.head()

    def read_records(self) -> StudyRecords:
        """Return all that it knows."""
        return read_records(self._folder)


class ArchiveSource:
    """A study in an archive that comes with autorecompute.

    Args:
        file: The archive.
    """

    is_shipped = True
    foreign = "shipped with autorecompute"

    def __init__(self, file: Path) -> None:
        self._file, self.name = file, file.name.partition(".")[0]

    def read_head(self) -> Head:
        """Return its head."""
        return read_archive_head(self._file)

    def read_records(self) -> StudyRecords:
        """Return all that it knows."""
        return read_archive(self._file)


def sources_beside(folder: StudyFolder) -> Iterator[Source]:
    """Yield the studies in the same place, and then those that are shipped."""
    for other in list_studies(folder.path.parent):
        if other.name != folder.name:
            yield FolderSource(other)
    for file in sorted(shipped_folder().glob(ARCHIVE_PATTERN)):
        yield ArchiveSource(file)


def shipped_folder() -> Path:
    """Return the folder of the archives: beside the package in a clone, in it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    in_a_clone = package.parent / "studies" / "shipped"
    return in_a_clone if in_a_clone.is_dir() else package / "shipped"


def try_head(source: Source, note: Callable[[str], None]) -> Head | None:
    """Read its head; return ``None``, with a note, where it cannot be read: the new study goes on without it."""
    return _try(source, source.read_head, note)


def try_records(source: Source, note: Callable[[str], None]) -> StudyRecords | None:
    """Return all that it knows; ``None``, with a note, where it cannot be read."""
    return _try(source, source.read_records, note)


def _try(source: Source, read: Callable[[], T], note: Callable[[str], None]) -> T | None:
    try:
        return read()
    except AutorecomputeError as error:
        note(f"study {source.name} is passed over: {error}")
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A stored study with the same plans.

    Attributes:
        name: What it is called.
        tuned: What it is about.
        differences: In what the new problem differs from it, in words; empty where it is the same.
        records: All that it knows.
    """

    name: str
    tuned: Tuned
    differences: tuple[str, ...]
    records: StudyRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The stored study that a problem is most like, whether it can tell anything of it or not.

    Attributes:
        name: What it is called.
        is_shipped: Whether it comes with autorecompute.
        tuned: What it is about.
        is_source: Whether a tuning starts from it: it has the same plans.
    """

    name: str
    is_shipped: bool
    tuned: Tuned
    is_source: bool


def find_nearest(tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]) -> Neighbour | None:
    """Return the nearest study that has measured anything; ``None`` where none has the same plans.

    Studies beside the folder come before those that are shipped, and studies that cannot be read are passed over.

    Args:
        tuned: What is to be tuned.
        folder: The study that is to be begun or gone on with, which is no neighbour of its own.
        note: Told of each study that is passed over, in a sentence.
    """
    for _, source, stored in _ranked(tuned, folder, note):
        if not tuned.problem.has_same_plans(stored.problem):
            continue
        records = try_records(source, note)
        if records is not None and any(trial.measurement.outcome.is_measured for trial in records.trials):
            # What was measured elsewhere is no answer here, however alike it looks.
            differences = (*tuned.differences(stored), *filter(None, [source.foreign]))
            return Neighbour(name=source.name, tuned=stored, differences=differences, records=records)
    return None


def find_most_alike(tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]) -> Nearest | None:
    """Return the study that a problem differs least from; ``None`` where there is no other that can be read.

    Args:
        tuned: What is compared.
        folder: Its study.
        note: Told of each study that is passed over, in a sentence.
    """
    for _, source, stored in _ranked(tuned, folder, note):
        return Nearest(
            name=source.name,
            is_shipped=source.is_shipped,
            tuned=stored,
            is_source=tuned.problem.has_same_plans(stored.problem),
        )
    return None


def _ranked(
    tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]
) -> list[tuple[tuple[float, ...], Source, Tuned]]:
    heads = [(source, try_head(source, note)) for source in sources_beside(folder)]
    stored = [(source, Tuned.of(head)) for source, head in heads if head is not None]
    ranked = [(_distance(tuned, other, source), source, other) for source, other in stored]
    return sorted(ranked, key=lambda entry: (entry[0], entry[1].name))


def _distance(mine: Tuned, theirs: Tuned, source: Source) -> tuple[float, ...]:
    """Return the distance between two problems.

    First what changes graph or machine, then the factors by which sizes differ.
    """
    has_other_plans = float(not mine.problem.has_same_plans(theirs.problem))
    kinds = ("graph", "device", "torch", "device_bytes")
    stored = mine.problem.seen_here(theirs.problem)
    changed = [float(getattr(mine.problem, kind) != getattr(stored, kind)) for kind in kinds]
    pairs = [
        (mine.problem.batch, theirs.problem.batch),
        (mine.problem.limit_bytes, theirs.problem.limit_bytes),
        *((size, theirs.sizes.dims.get(name, 1)) for name, size in mine.sizes.dims.items()),
    ]
    factors = sum(abs(math.log(max(mine_size, 1) / max(their_size, 1))) for mine_size, their_size in pairs)
    is_other, is_foreign = float(mine.command != theirs.command), float(bool(source.foreign))
    return (has_other_plans, float(source.is_shipped), *changed, factors, is_other, is_foreign)
