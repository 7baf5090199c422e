"""Finds the stored study that tells most of a new problem."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.studies.records import StudyRecords
from autorecompute.studies.sources import sources_beside, try_head, try_records
from autorecompute.studies.tuned import Tuned

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.studies.folder import StudyFolder
    from autorecompute.studies.sources import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A stored study with the same plans.

    Attributes:
        name: What it is called.
        tuned: What it is about.
        differences: In what the new problem differs from it, in words; empty where it is the same.
        records: All that it knows.
    """

    name: str
    tuned: Tuned
    differences: tuple[str, ...]
    records: StudyRecords


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The stored study that a problem is most like, whether it can tell anything of it or not.

    Attributes:
        name: What it is called.
        is_shipped: Whether it comes with autorecompute.
        tuned: What it is about.
        is_source: Whether a tuning starts from it: it has the same plans.
    """

    name: str
    is_shipped: bool
    tuned: Tuned
    is_source: bool


def find_nearest(tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]) -> Neighbour | None:
    """Return the nearest study that has measured anything; ``None`` where none has the same plans.

    Studies beside the folder come before those that are shipped, and studies that cannot be read are passed over.

    Args:
        tuned: What is to be tuned.
        folder: The study that is to be begun or gone on with, which is no neighbour of its own.
        note: Told of each study that is passed over, in a sentence.
    """
    for _, source, stored in _ranked(tuned, folder, note):
        if not tuned.problem.has_same_plans(stored.problem):
            continue
        records = try_records(source, note)
        if records is not None and any(trial.measurement.outcome.is_measured for trial in records.trials):
            # What was measured elsewhere is no answer here, however alike it looks.
            differences = (*tuned.differences(stored), *filter(None, [source.foreign]))
            return Neighbour(name=source.name, tuned=stored, differences=differences, records=records)
    return None


def find_most_alike(tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]) -> Nearest | None:
    """Return the study that a problem differs least from; ``None`` where there is no other that can be read.

    Args:
        tuned: What is compared.
        folder: Its study.
        note: Told of each study that is passed over, in a sentence.
    """
    for _, source, stored in _ranked(tuned, folder, note):
        return Nearest(
            name=source.name,
            is_shipped=source.is_shipped,
            tuned=stored,
            is_source=tuned.problem.has_same_plans(stored.problem),
        )
    return None


def _ranked(
    tuned: Tuned, folder: StudyFolder, note: Callable[[str], None]
) -> list[tuple[tuple[float, ...], Source, Tuned]]:
    heads = [(source, try_head(source, note)) for source in sources_beside(folder)]
    stored = [(source, Tuned.of(head)) for source, head in heads if head is not None]
    ranked = [(_distance(tuned, other, source), source, other) for source, other in stored]
    return sorted(ranked, key=lambda entry: (entry[0], entry[1].name))


def _distance(mine: Tuned, theirs: Tuned, source: Source) -> tuple[float, ...]:
    """Return how far apart two problems are.

    First what changes graph or machine, then the factors by which sizes differ.
    """
    has_other_plans = float(not mine.problem.has_same_plans(theirs.problem))
    kinds = ("graph", "device", "torch", "device_bytes")
    stored = mine.problem.seen_here(theirs.problem)
    changed = [float(getattr(mine.problem, kind) != getattr(stored, kind)) for kind in kinds]
    pairs = [
        (mine.problem.batch, theirs.problem.batch),
        (mine.problem.limit_bytes, theirs.problem.limit_bytes),
        *((size, theirs.sizes.dims.get(name, 1)) for name, size in mine.sizes.dims.items()),
    ]
    factors = sum(abs(math.log(max(mine_size, 1) / max(their_size, 1))) for mine_size, their_size in pairs)
    is_other, is_foreign = float(mine.command != theirs.command), float(bool(source.foreign))
    return (has_other_plans, float(source.is_shipped), *changed, factors, is_other, is_foreign)
