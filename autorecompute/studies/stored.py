"""The studies there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.errors import UsageError
from autorecompute.studies.folder import STUDIES, STUDY, StudyFolder
from autorecompute.studies.names import is_name

if TYPE_CHECKING:
    from pathlib import Path

    from autorecompute.result import Result


def list_studies(root: Path | None = None) -> list[StudyFolder]:
    """The studies there are, by name."""
    base = root or STUDIES
    folders = sorted(base.iterdir()) if base.is_dir() else []
    begun = (path for path in folders if is_name(path.name) and (path / STUDY).is_file())
    return [StudyFolder(path.name, root) for path in begun]


def load_result(name: str, root: Path | None = None) -> Result:
    """The answer of a study.

    Raises:
        UsageError: there is no such study, it has no answer yet, or another version made it.
    """
    folder = StudyFolder(name, root)
    folder.head()
    result = folder.result()
    if result is None:
        raise UsageError(f"Study '{name}' has no answer yet. Finish it: run its tune command again.")
    return result
