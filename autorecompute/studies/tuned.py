"""Comparison of the problem at hand with that of a study."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from autorecompute.errors import UsageError
from autorecompute.studies.problem import Difference, Problem, Sizes, compare
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.studies.folder import StudyFolder
    from autorecompute.studies.problem import Head

COMMAND = "command"

LEAST_RATIO = 0.9
"""Amounts of memory of one training are closer together, from start to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Problem, the sizes it is met at, and the command that meets it."""

    problem: Problem
    sizes: Sizes
    command: tuple[str, ...]

    @classmethod
    def of(cls, head: Head) -> Self:
        """Return those of a stored study."""
        return cls(problem=head.problem, sizes=head.sizes, command=head.command)

    @property
    def parts(self) -> dict[str, str]:
        """Return each part of the identity in words, by its name."""
        return {**self.problem.parts, **self.sizes.parts, COMMAND: shlex.join(self.command)}

    def compare(self, other: Tuned) -> list[Difference]:
        """Return the parts that differ."""
        there = replace(other, problem=self.problem.seen_here(other.problem))
        return [*self.other_amounts(other), *compare(self.parts, there.parts)]

    def differences(self, other: Tuned) -> tuple[str, ...]:
        """Return in what the other differs, in words; nothing where one answer holds for both.

        The same graph can be trained by another optimizer: commands that differ are told where nothing else does.
        """
        found = self.compare(other)
        told = tuple(difference.sentence for difference in found if difference.part != COMMAND)
        return told or ("another command",) * bool(found)

    def conflicts(self, stored: Tuned) -> list[str]:
        """Return the differences that make this another problem than that of a study, in words.

        Batches of texts differ in length from start to start: with the same command, other dimensions are no conflict.
        """
        dims = [] if self.command == stored.command else compare(self.sizes.parts, stored.sizes.parts)
        others = [difference.sentence for difference in (*self.other_amounts(stored), *dims)]
        return [*self.problem.differences(stored.problem), *others]

    def other_amounts(self, other: Tuned) -> list[Difference]:
        """Return the amounts of memory that differ with the same plans at the same dimensions.

        A model of the same modules and operators may keep more: a convolution with another stride, or attention with
        more heads. With another optimizer, more is held between two steps; on a CPU, so it may be for other reasons.
        """
        if self.problem.plans != other.problem.plans or self.sizes.dims != other.sizes.dims:
            return []
        amounts = {"activations": (self.sizes.saved_bytes, other.sizes.saved_bytes)}
        if not self.problem.device.startswith("cpu "):
            amounts["memory between steps"] = (self.sizes.resting_bytes, other.sizes.resting_bytes)
        return [
            Difference(part=part, here=format_bytes(here), there=format_bytes(there))
            for part, (here, there) in amounts.items()
            if 0 < min(here, there) < LEAST_RATIO * max(here, there)
        ]


def bind(folder: StudyFolder, tuned: Tuned, note: Callable[[str], None]) -> bool:
    """Begin the study with what is tuned, or check that it was begun with the same; tell whether it began.

    Raises:
        UsageError: the study holds another problem, or was imported.
    """
    require_own(folder)
    if not folder.exists():
        folder.begin(tuned.problem, tuned.command, tuned.sizes)
        return True
    stored = Tuned.of(folder.head())
    if conflicts := tuned.conflicts(stored):
        raise UsageError(
            f"Study '{folder.name}' holds another problem: here it is {'; '.join(conflicts)}. "
            "Begin a new study with --study NAME."
        )
    if others := tuned.differences(stored):
        note(f"study '{folder.name}' was begun with another first batch or command: here it is {'; '.join(others)}")
    return False


def require_own(folder: StudyFolder) -> None:
    """Check that a study, where there is one, was not imported: its figures are those of another machine.

    Raises:
        UsageError: it was.
    """
    if folder.exists() and folder.is_imported:
        raise UsageError(
            f"Study '{folder.name}' was imported, and what is measured here goes into a study of its own. Add --study "
            f"NAME: the tuning starts from what '{folder.name}' knows."
        )
