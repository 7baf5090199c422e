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
        UsageError: the study holds another problem.
    """
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
