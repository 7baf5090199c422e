"""Removes studies, and what of them nobody needs any more."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from autorecompute.errors import AutorecomputeError
from autorecompute.studies import batch_studies
from autorecompute.studies.contents import logs_of, require_no_strangers, strangers_in
from autorecompute.studies.folder import PAGE, STUDIES, list_studies
from autorecompute.studies.importing import DRAFT_PREFIX, drafting
from autorecompute.studies.shared_folder import shared_from
from autorecompute.studies.storage import read_trials
from autorecompute.studies.use import find_user, require_unused
from autorecompute.studies.writing import saying_what_fails

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.studies.folder import StudyFolder

_DRAFT = re.compile(re.escape(DRAFT_PREFIX) + r"([0-9]{1,9})-.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Removable:
    """Something that reuse does not need.

    Attributes:
        path: The file or folder.
        size_bytes: What it takes on the disk.
        why: Why nobody needs it, in words.
    """

    path: Path
    size_bytes: int
    why: str


def delete(folder: StudyFolder) -> int:
    """Remove a study; how many bytes that freed.

    Raises:
        UsageError: a process uses it, or somebody else's files lie in its folder.
        SetupError: it cannot be removed.
    """
    require_removable(folder)
    return _remove(folder.path)


def require_removable(folder: StudyFolder) -> None:
    """Check that a study can be removed, and nothing with it.

    Raises:
        UsageError: a process uses it, or somebody else's files lie in its folder.
    """
    require_unused(folder)
    require_no_strangers(folder)


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder as far as they can be read; links count as themselves."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(size_of(entry) for entry in path.iterdir())
    except OSError:  # it went away meanwhile, or is closed to this user
        return 0


def find_removable() -> Iterator[Removable]:
    """Yield what can go.

    The output of finished studies' processes, studies that measured nothing, and abandoned drafts.
    """
    for folder in list_studies():
        # What a link leads to may be anybody's.
        if not folder.path.is_symlink() and find_user(folder) is None:
            yield from _removable_in(folder)
    for draft in sorted(STUDIES.glob(f"{DRAFT_PREFIX}*")):
        owner = _DRAFT.fullmatch(draft.name)
        if owner is not None and not draft.is_symlink() and not psutil.pid_exists(int(owner[1])):
            yield _removable(draft, "left over from a command that was ended")


def remove(removable: Removable) -> int:
    """Remove it; how many bytes that freed.

    Raises:
        SetupError: it cannot be removed.
    """
    return _remove(removable.path)


def _removable_in(folder: StudyFolder) -> Iterator[Removable]:
    try:
        folder.head()
        result = folder.result()
        is_empty = _is_empty(folder) if result is None else False
    except AutorecomputeError:
        return  # what cannot be read may still be mended
    if is_empty and not strangers_in(folder):
        yield _removable(folder.path, "a study without trials")
    elif result is not None and not result.search_end.is_early:
        logs, page = logs_of(folder), folder.path / PAGE
        yield from (_removable(path, "output of a finished study") for path in logs)
        if logs and page.is_file() and not page.is_symlink():
            yield _removable(page, "links to that output; 'autorecompute report' makes it anew")


def _is_empty(folder: StudyFolder) -> bool:
    if shared_from(folder) is not None:
        return False  # its trials are in a storage
    if folder.trial_in_progress() is not None or (folder.path / batch_studies.FILE).exists():
        return False
    return not read_trials(folder.database, folder.name_in_database)


def _removable(path: Path, why: str) -> Removable:
    return Removable(path=path, size_bytes=size_of(path), why=why)


def _remove(path: Path) -> int:
    size_bytes = size_of(path)
    if not path.is_dir() or path.is_symlink():
        with saying_what_fails(path):
            path.unlink()
        return size_bytes
    # Renamed first: a study is there as a whole or not at all, whatever ends this process.
    with drafting(STUDIES) as drafts, saying_what_fails(path):
        path.rename(drafts / path.name)
    return size_bytes
