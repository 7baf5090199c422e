"""Makes a study of an archive: whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.studies.contents import require_no_strangers
from autorecompute.studies.folder import STUDIES, StudyFolder
from autorecompute.studies.records import StudyRecords, write_records
from autorecompute.studies.use import require_unused
from autorecompute.studies.writing import saying_what_fails
from autorecompute.units import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

DRAFT_PREFIX = ".draft-"
"""Folders of studies that are being made or removed; the number of the process follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """What an archive may bring along.

    Attributes:
        knobs: Names of the settings that are known, by the training system's name.
    """

    knobs: dict[str, frozenset[str]]


def import_records(records: StudyRecords, name: str, trusted: Trusted, *, force: bool) -> StudyFolder:
    """Return the study that was made.

    Args:
        records: What is in the archive.
        name: What the study is to be called.
        trusted: What it may bring along.
        force: Whether a study of this name may be replaced.

    Raises:
        UsageError: the name is taken, or is none; the archive has what this version does not know; a process uses
            the study, or somebody else's files lie in its folder.
        SetupError: the disk is full, or the folder cannot be written.
    """
    folder = StudyFolder(name)
    name = folder.name
    require_trusted(records, trusted)
    if folder.path.exists() or folder.path.is_symlink():
        if not force:
            raise UsageError(f"There is a study '{name}' already. Add --force to replace it, or --study NAME.")
        require_unused(folder)
        require_no_strangers(folder)
    head = replace(records.head, study=name)
    result = None if records.result is None else replace(records.result, study=name)
    own = replace(records, head=head, result=result)
    with drafting(STUDIES) as drafts:
        write_records(own, StudyFolder(name, drafts))
        _put(drafts / name, folder, force=force)
    return folder


def _put(made: Path, folder: StudyFolder, *, force: bool) -> None:
    replaced = made.with_name(f"{made.name}.replaced")
    with saying_what_fails(folder.path):
        if force and (folder.path.exists() or folder.path.is_symlink()):
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


def require_trusted(records: StudyRecords, trusted: Trusted) -> None:
    """Check that an archive is about the training system and the settings that are known here.

    Raises:
        UsageError: it is about others.
    """
    result = records.result
    backends = {records.head.problem.backend, *([result.versions["backend"]] if result is not None else [])}
    if len(backends) > 1 or not backends <= trusted.knobs.keys():
        raise UsageError("The archive is about a training system that this autorecompute does not know. Update it.")
    bests = [*records.confirmed, *([result.best] if result is not None and result.best is not None else [])]
    known = trusted.knobs[records.head.problem.backend]
    if strangers := sorted({name for best in bests for name in best.knobs} - known):
        raise UsageError(
            f"The archive has the setting '{printable(strangers[0], '')}', which this autorecompute does not know. "
            "Nothing was imported. Install the version that wrote it."
        )
