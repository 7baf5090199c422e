"""Ties a study's folder to the one problem it is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.studies import Problem, Sizes, StudyFolder


def bind(folder: StudyFolder, problem: Problem, command: Sequence[str], sizes: Sizes) -> bool:
    """Begins the study with this problem, or checks that it was begun with the same; whether it began.

    Raises:
        UsageError: the study holds another problem, or was imported.
    """
    require_own(folder)
    if not folder.exists():
        folder.begin(problem, command, sizes)
        return True
    differences = problem.differences(folder.problem())
    if differences:
        raise UsageError(
            f"Study '{folder.name}' holds another problem: here it is {'; '.join(differences)}. "
            "Begin a new study with --study NAME."
        )
    return False


def require_own(folder: StudyFolder) -> None:
    """Checks that a study, where there is one, was not imported: its figures are those of another machine.

    Raises:
        UsageError: it was.
    """
    if folder.exists() and folder.is_imported:
        raise UsageError(
            f"Study '{folder.name}' was imported, and what is measured here goes into a study of its own. Add --study "
            f"NAME: the tuning starts from what '{folder.name}' knows."
        )
