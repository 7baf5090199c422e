"""Names for the symbolic dimensions of a model's inputs that are the same in every run.

ORT names a dimension after an input that has it. Where several inputs share one, the name it picks varies between runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.plans.dimensions import BATCH, SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One symbolic dimension of one input of the model.

    Attributes:
        alias: ORT's name of it, ``input_ids_dim1``.
        place: Its position in the input's shape, from 0.
        value: Its size in the first batch.
        is_of_ids: Whether the input is a table of whole numbers, as token ids are.
    """

    alias: str
    place: int
    value: int
    is_of_ids: bool


def canonical_names(axes: Sequence[Axis]) -> dict[str, str]:
    """Return a name for each alias; dimensions at the same place with the same value are one, and have one name.

    The first dimension that most inputs share is the ``batch``, the second one of token ids the ``sequence``. Another
    keeps the alias of the first input that has it. Two that only happened to be equal in the first batch are one, too.
    """
    names = {}
    if (batch := _most_common(axis.value for axis in axes if axis.place == 0)) is not None:
        names[0, batch] = BATCH
    if (sequence := _most_common(axis.value for axis in axes if axis.place == 1 and axis.is_of_ids)) is not None:
        names[1, sequence] = SEQUENCE
    return {axis.alias: names.setdefault((axis.place, axis.value), axis.alias) for axis in axes}


def _most_common(values: Iterable[int]) -> int | None:
    # Of several that are equally common the first counts, as inputs come in the order of the model's signature.
    common = Counter(values).most_common(1)
    return common[0][0] if common else None
