"""What a study's folder has to be before anything is written there: nothing in it may lead elsewhere.

A folder that was cloned or unpacked can hold links to any place of the user's. A link to a whole study is the user's
own choice and stays allowed, as does one in place of the folder of all studies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.errors import SetupError
from autorecompute.files import walk

if TYPE_CHECKING:
    from pathlib import Path

    from autorecompute.studies.folder import StudyFolder


def require_plain(folder: StudyFolder) -> None:
    """Check that nothing in a study's folder leads elsewhere.

    Raises:
        SetupError: a link, a pipe or the like lies there, or the folder is a link and what it leads to is no study.
    """
    if folder.path.is_symlink() and not folder.exists():
        raise SetupError(_describe(folder.path, "a link to what is no study"))
    for path in walk(folder.path) if folder.path.is_dir() else ():
        if path.is_symlink():
            raise SetupError(_describe(path, "a link"))
        if not path.is_file():
            raise SetupError(_describe(path, "a folder that cannot be read" if path.is_dir() else "no file"))


def _describe(path: Path, what: str) -> str:
    return (
        f"{path} is {what}: what is written there could end up elsewhere. Put a file or folder of its own there, or "
        "begin a new study with --study NAME."
    )
