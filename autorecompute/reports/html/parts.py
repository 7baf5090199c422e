"""The studies that a page is about: one, or one for each of several batches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.measurement import Trial
from autorecompute.plans.dimensions import BATCH
from autorecompute.studies import Problem, Sizes, StudyFolder, list_studies
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.records import trials_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.plans import Space
    from autorecompute.result import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A study with trials.

    Attributes:
        folder: Where it is kept.
        problem: What it is about.
        sizes: The sizes that it was measured at.
        trials: What it measured.
    """

    folder: StudyFolder
    problem: Problem
    sizes: Sizes
    trials: tuple[Trial, ...]

    @property
    def dims(self) -> dict[str, int]:
        """Return the dimensions of its steps."""
        return {**self.sizes.dims, BATCH: self.problem.batch}

    @property
    def space(self) -> Space:
        """Return its plans."""
        return self.sizes.space


def read_part(folder: StudyFolder) -> Part:
    """Return the study of a folder.

    Raises:
        UsageError: there is none, or another version of autorecompute made it.
        SetupError: it cannot be read.
    """
    head = folder.head()
    return Part(
        folder=folder,
        problem=head.problem,
        sizes=head.sizes,
        trials=tuple(trials_of(folder)),
    )


def read_parts(folder: StudyFolder, result: Result | None) -> list[Part]:
    """Return the study itself, or the studies of its batches, the smallest batch first."""
    whole = read_part(folder)
    if whole.problem.batch != SEVERAL_BATCHES:
        return [whole]
    names = _named_by(folder, result)
    found = (StudyFolder(name, folder.path.parent) for name in names)
    parts = [read_part(part) for part in found if part.exists()]
    return sorted(parts, key=lambda part: part.problem.batch)


def main_part(parts: Sequence[Part], result: Result | None) -> Part | None:
    """Return the one to look into: that of the batch to train with, or the largest that was tuned."""
    wanted = result.best.batch if result is not None and result.best is not None else None
    telling = [part for part in parts if part.trials]
    return next((part for part in telling if part.problem.batch == wanted), telling[-1] if telling else None)


def _named_by(folder: StudyFolder, result: Result | None) -> list[str]:
    if result is not None:
        return [point.recomputed.study for point in result.curve if point.recomputed is not None]
    # Nobody has drawn the curve yet: the studies stand beside this one.
    own = re.compile(rf"{re.escape(folder.name)}-b\d+")
    return [study.name for study in list_studies(folder.path.parent) if own.fullmatch(study.name)]
