"""In what two problems differ: each part of an identity by its name, as it is here and as it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ABSENT = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A part of a problem's identity that another problem has otherwise.

    Attributes:
        part: Its name, ``batch`` for instance.
        here: What it is, in words.
        there: What the other has.
    """

    part: str
    here: str
    there: str

    @property
    def sentence(self) -> str:
        """``batch 32, not 16``."""
        return f"{self.part} {self.here}, not {self.there}"


def compare(here: Mapping[str, str], there: Mapping[str, str]) -> list[Difference]:
    """Return the parts that differ, in the order they have here; one that is missing is ``-``."""
    names = dict.fromkeys([*here, *there])
    pairs = [(name, here.get(name, ABSENT), there.get(name, ABSENT)) for name in names]
    return [Difference(part=name, here=mine, there=theirs) for name, mine, theirs in pairs if mine != theirs]
