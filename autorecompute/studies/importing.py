"""Imports studies, and removes them.

Whatever makes or removes a folder raises ``SetupError`` where that fails, and ``UsageError`` where a process uses the
study or somebody else's files lie in its folder.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from autorecompute.errors import AutorecomputeError, UsageError
from autorecompute.files import DRAFT, walk
from autorecompute.result import NAME as EVIDENCE
from autorecompute.studies.checked import CHECKED
from autorecompute.studies.folder import (
    CONFIRMED,
    IN_PROGRESS,
    LOCK,
    PAGE,
    REJECTED,
    STUDIES,
    STUDY,
    StudyFolder,
    find_user,
    list_studies,
    require_unused,
    saying_what_fails,
)
from autorecompute.studies.records import BATCHES_FILE, FILES, SHARED, StudyRecords, shared_from, write_records
from autorecompute.studies.storage import read_trials
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator


NAMED_AT_ONCE = 3  # so many files of others are named in a message
_RECORDS = (IN_PROGRESS, REJECTED, CONFIRMED, CHECKED, EVIDENCE, SHARED, STUDY, *(f"{name}.json" for name in FILES))
_LOG = r"trials/\d+/output\.log|workers/(.+/)?\d+\.log"
_OURS = (
    *(re.escape(name) for name in (*_RECORDS, PAGE, LOCK, ".gitignore")),
    _LOG,
    r"(study|\.study\.\w+)\.db(-journal|-wal|-shm)?",
    r"trials/\d+/(command\.txt|environment\.json|result\.json|plans\.json)",
    r"workers/.+/\w+\.json",
    r"best/plans\.json",
    rf"(.+/)?{DRAFT.pattern}",
)
"""The paths of our files, from the study's folder on."""

_is_log = re.compile(_LOG).fullmatch
_is_ours = re.compile("|".join(_OURS)).fullmatch


def logs_of(folder: StudyFolder) -> list[Path]:
    """Return the output of the study's processes; behind a link nothing is looked for."""
    return [path for path, place in _files_in(folder) if not path.is_symlink() and _is_log(place)]


def strangers_in(folder: StudyFolder) -> list[str]:
    """Return the files and links that autorecompute did not make, as paths from the study's folder on."""
    if not folder.path.is_dir():
        return ["."]
    return [place for path, place in _files_in(folder) if path.is_symlink() or not _is_ours(place)]


def _files_in(folder: StudyFolder) -> list[tuple[Path, str]]:
    return [(path, path.relative_to(folder.path).as_posix()) for path in walk(folder.path)]


DRAFT_PREFIX = ".draft-"  # folders of studies that are being made or removed; the number of the process follows


Knobs = Mapping[str, frozenset[str]]
"""Names of the settings that are known, by the training system's name: an archive may bring along no others."""


def import_records(records: StudyRecords, name: str, known: Knobs, *, force: bool) -> StudyFolder:
    """Make a study of an archive's records, in the place of one of this name where it is forced; return it."""
    folder = StudyFolder(name)
    name = folder.name
    require_trusted(records, known)
    if os.path.lexists(folder.path):
        if not force:
            raise UsageError(f"There is a study '{name}' already. Add --force to replace it, or --study NAME.")
        require_removable(folder)
    result = None if records.result is None else replace(records.result, study=name)
    own = replace(records, head=replace(records.head, study=name), result=result)
    with drafting(STUDIES) as drafts:
        write_records(own, StudyFolder(name, drafts))
        _put(drafts / name, folder, force=force)
    return folder


def _put(made: Path, folder: StudyFolder, *, force: bool) -> None:
    replaced = made.with_name(f"{made.name}.replaced")
    with saying_what_fails(folder.path):
        if force and os.path.lexists(folder.path):
            folder.path.rename(replaced)
        try:
            # No study is replaced by this: the system moves a folder to where nothing is, or an empty one.
            made.rename(folder.path)
        except BaseException as error:
            # What is left in the folder of drafts goes away with it.
            if os.path.lexists(replaced) and not os.path.lexists(folder.path):
                replaced.rename(folder.path)
            if not isinstance(error, OSError) or error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
            raise UsageError(
                f"Another command made study '{folder.name}' meanwhile, which was left as it is. Import it once more "
                "with --force to replace that, or add --study NAME."
            ) from error


@contextmanager
def drafting(root: Path) -> Iterator[Path]:
    """Give a folder beside the studies that goes away with all that is left in it."""
    with saying_what_fails(root):
        root.mkdir(parents=True, exist_ok=True)
        drafts = Path(tempfile.mkdtemp(prefix=f"{DRAFT_PREFIX}{os.getpid()}-", dir=root))
    try:
        yield drafts
    finally:
        shutil.rmtree(drafts, ignore_errors=True)


def require_trusted(records: StudyRecords, known: Knobs) -> None:
    """Check that an archive is about a training system and settings that are known here."""
    result, backend = records.result, records.head.problem.backend
    if backend not in known or (result is not None and result.versions["backend"] != backend):
        raise UsageError("The archive is about a training system that this autorecompute does not know. Update it.")
    bests = [*records.confirmed, *([result.best] if result is not None and result.best is not None else [])]
    if strangers := sorted({name for best in bests for name in best.knobs} - known[backend]):
        raise UsageError(
            f"The archive has the setting '{printable(strangers[0], '')}', which this autorecompute does not know. "
            "Nothing was imported. Install the version that wrote it."
        )


_DRAFT = re.compile(re.escape(DRAFT_PREFIX) + r"([0-9]{1,9})-.*")


def require_removable(folder: StudyFolder) -> None:
    """Check that a study can be removed, and nothing with it; of a link to a folder, the link alone would go."""
    require_unused(folder)
    if folder.path.is_symlink() or not (strangers := strangers_in(folder)):
        return
    named = ", ".join(strangers[:NAMED_AT_ONCE])
    raise UsageError(
        f"{folder.path} holds what autorecompute did not make ({printable(named, '')}). Nothing was removed: move that "
        "elsewhere, or remove the folder yourself."
    )


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder as far as they can be read; links count as themselves."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(size_of(entry) for entry in path.iterdir())
    except OSError:  # it went away meanwhile, or is closed to this user
        return 0


def find_removable() -> Iterator[tuple[Path, str]]:
    """Yield what can go, and why: output of finished studies, studies without trials, abandoned drafts."""
    for folder in list_studies():
        # What a link leads to may be anybody's.
        if not folder.path.is_symlink() and find_user(folder) is None:
            yield from _removable_in(folder)
    for draft in sorted(STUDIES.glob(f"{DRAFT_PREFIX}*")):
        owner = _DRAFT.fullmatch(draft.name)
        if owner is not None and not draft.is_symlink() and not psutil.pid_exists(int(owner[1])):
            yield draft, "left over from a command that was ended"


def remove(path: Path) -> int:
    """Remove a file, or a folder as a whole; how many bytes that freed."""
    size_bytes = size_of(path)
    if not path.is_dir() or path.is_symlink():
        with saying_what_fails(path):
            path.unlink()
        return size_bytes
    # Renamed first: a study is there as a whole or not at all, whatever ends this process.
    with drafting(path.parent) as drafts, saying_what_fails(path):
        path.rename(drafts / path.name)
    return size_bytes


def _removable_in(folder: StudyFolder) -> Iterator[tuple[Path, str]]:
    try:
        folder.head()
        result = folder.result()
        is_empty = result is None and _is_empty(folder)
    except AutorecomputeError:
        return  # what cannot be read may still be mended
    if is_empty and not strangers_in(folder):
        yield folder.path, "a study without trials"
    elif result is not None and not result.search_end.is_early:
        logs, page = logs_of(folder), folder.path / PAGE
        yield from ((path, "output of a finished study") for path in logs)
        if logs and page.is_file() and not page.is_symlink():
            yield page, "links to that output; 'autorecompute report' makes it anew"


def _is_empty(folder: StudyFolder) -> bool:
    if shared_from(folder) is not None or folder.trial_in_progress() is not None:
        return False  # its trials are in a storage, or begin
    return not (folder.path / BATCHES_FILE).exists() and not read_trials(folder.database, folder.name_in_database)
