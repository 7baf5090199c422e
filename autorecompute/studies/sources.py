"""Where a new problem may start from: the studies beside it, and those that come with autorecompute."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from autorecompute.errors import AutorecomputeError
from autorecompute.studies.archive_reading import read_archive, read_archive_head
from autorecompute.studies.folder import list_studies
from autorecompute.studies.records import StudyRecords, read_records

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
        """Return what it is called."""
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
        """Return what it is about."""
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
        """Return what it is about."""
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
        """Return what it is about."""
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
    """Return where the archives lie: beside the package in a clone, in it where it was installed from a wheel."""
    package = Path(__file__).parents[1]
    in_a_clone = package.parent / "studies" / "shipped"
    return in_a_clone if in_a_clone.is_dir() else package / "shipped"


def try_head(source: Source, note: Callable[[str], None]) -> Head | None:
    """Return what it is about; ``None``, with a note, where it cannot be read: the new study goes on without it."""
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
