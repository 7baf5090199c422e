"""Where a new problem may start from: the studies beside it, and those that come with autorecompute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from autorecompute.errors import AutorecomputeError
from autorecompute.studies.archive_reading import read_archive, read_archive_head
from autorecompute.studies.folder import StudyFolder, list_studies
from autorecompute.studies.records import Head, StudyRecords, read_head, read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

ARCHIVE_PATTERN = "*.jsonl.gz"


class Source(Protocol):
    """A stored study that may tell something of a new one."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def is_shipped(self) -> bool:
        """Whether it comes with autorecompute."""
        ...

    @property
    def foreign(self) -> str:
        """Why its answer is none here, though the problem may be the same, in words; empty where it is one."""
        ...

    def read_head(self) -> Head:
        """What it is about."""
        ...

    def read_records(self) -> StudyRecords:
        """All that it knows."""
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
        """Whether it was imported, or was measured on another machine."""
        if self._folder.is_imported:
            return "it was imported"
        return "" if self._folder.is_of_this_machine else "it was measured on another machine"

    def read_head(self) -> Head:
        """What it is about."""
        return read_head(self._folder)

    def read_records(self) -> StudyRecords:
        """All that it knows."""
        return read_records(self._folder)


class ArchiveSource:
    """A study in an archive that comes with autorecompute.

    Args:
        file: The archive.
    """

    is_shipped = True
    foreign = "its figures come with autorecompute"

    def __init__(self, file: Path) -> None:
        self._file, self.name = file, file.name.partition(".")[0]

    def read_head(self) -> Head:
        """What it is about."""
        return read_archive_head(self._file)

    def read_records(self) -> StudyRecords:
        """All that it knows."""
        return read_archive(self._file)


def sources_beside(folder: StudyFolder) -> Iterator[Source]:
    """The studies in the same place, and then those that are shipped."""
    for other in list_studies(folder.path.parent):
        if other.name != folder.name:
            yield FolderSource(other)
    for file in sorted(shipped_folder().glob(ARCHIVE_PATTERN)):
        yield ArchiveSource(file)


def shipped_folder() -> Path:
    """Where the archives lie: beside the package in a clone, in it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    in_a_clone = package.parent / "studies" / "shipped"
    return in_a_clone if in_a_clone.is_dir() else package / "shipped"


def try_head(source: Source) -> Head | None:
    """What it is about; ``None`` where it cannot be read: a broken study beside it is not the new one's fault."""
    try:
        return source.read_head()
    except AutorecomputeError:
        return None


def try_records(source: Source) -> StudyRecords | None:
    """All that it knows; ``None`` where it cannot be read."""
    try:
        return source.read_records()
    except AutorecomputeError:
        return None
