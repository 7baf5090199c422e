"""What lies in a study's folder: the files that autorecompute made, and those of others, which are never removed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.evidence import NAME as EVIDENCE
from autorecompute.files import DRAFT, walk
from autorecompute.studies import analysis, batch_studies, detected, race_record
from autorecompute.studies.confirmed_here import CHECKED
from autorecompute.studies.folder import CONFIRMED, IN_PROGRESS, PAGE, REJECTED, STUDY
from autorecompute.studies.shared_folder import SHARED
from autorecompute.studies.use import LOCK
from autorecompute.units import printable

if TYPE_CHECKING:
    from pathlib import Path

    from autorecompute.studies.folder import StudyFolder

NAMED_AT_ONCE = 3
"""So many files of others are named in a message."""

_FILES = (analysis.FILE, batch_studies.FILE, detected.FILE, race_record.FILE)
_RECORDS = (IN_PROGRESS, REJECTED, CONFIRMED, CHECKED, EVIDENCE, *_FILES, SHARED, STUDY, "result.json")
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
    return [path for path in walk(folder.path) if not path.is_symlink() and _is_log(_inner(path, folder))]


def strangers_in(folder: StudyFolder) -> list[str]:
    """Return the files and links that autorecompute did not make, as paths from the study's folder on."""
    if not folder.path.is_dir():
        return ["."]
    inner = ((_inner(path, folder), path.is_symlink()) for path in walk(folder.path))
    return [place for place, is_link in inner if is_link or not _is_ours(place)]


def require_no_strangers(folder: StudyFolder) -> None:
    """Check that whoever removes the study removes nothing else; of a link to a folder, the link alone would go.

    Raises:
        UsageError: somebody else's files lie in its folder.
    """
    if folder.path.is_symlink() or not (strangers := strangers_in(folder)):
        return
    named = ", ".join(strangers[:NAMED_AT_ONCE])
    raise UsageError(
        f"{folder.path} holds what autorecompute did not make ({printable(named, '')}). Nothing was removed: move that "
        "elsewhere, or remove the folder yourself."
    )


def _inner(path: Path, folder: StudyFolder) -> str:
    return path.relative_to(folder.path).as_posix()
