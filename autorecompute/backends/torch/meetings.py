"""Choices that meet: one drops a tensor, or keeps it, and the other keeps it as what a checkpointed module is given.

What each does alone does not add up then, so that a step is run with both. Modules that are given one tensor, as LoRA's
projections of queries and values are, keep it once.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import TYPE_CHECKING

from autorecompute.backends.torch.amounts import NOTHING
from autorecompute.backends.torch.options import DROP, EVERY_2ND
from autorecompute.backends.torch.space import offered
from autorecompute.backends.torch.structure import is_within
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.extra import OptionStep
    from autorecompute.backends.torch.switchboard import Switchboard


def meetings_of(found: Detected, board: Switchboard) -> Iterator[tuple[Choice, Choice]]:
    """Pairs of choices of which the second keeps what the first has, where both do something beside each other."""
    names = {site.name for site in offered(found)}
    for one, other in found.meetings:
        if not {one, other} <= names:
            continue
        for options in itertools.product(board.sites[one].options, board.sites[other].options):
            pair = Choice(one, options[0]), Choice(other, options[1])
            if EVERY_2ND not in options and {effect.site for effect in board.resolve(pair)} == {one, other}:
                yield pair


def paths_of(found: Detected, board: Switchboard, pair: tuple[Choice, Choice]) -> list[str]:
    """Return where both of a pair are on: an operator is dropped from a whole unit's graph, which holds the modules.

    Modules that are given one tensor lie in one unit.
    """
    one, other = (board.paths(choice) for choice in pair)
    if pair[0].option == DROP:
        return [path for path in one if any(is_within(inner, path) for inner in other)]
    units = {found.structure.unit_of(path) for path in other}
    return [path for path in one if found.structure.unit_of(path) in units]


def beyond(both: OptionStep, one: OptionStep, other: OptionStep) -> OptionStep:
    """Return what two choices make of a step beyond what each makes alone."""
    sums: dict[tuple[int, int], tuple[int, int]] = collections.defaultdict(lambda: (0, 0))
    for step, sign in ((both, 1), (one, -1), (other, -1)):
        for place, owner, change, highest in zip(step.parts, step.owners, step.change, step.highest, strict=True):
            before = sums[place, owner]
            sums[place, owner] = before[0] + sign * change, before[1] + sign * highest
    found = {where: amounts for where, amounts in sums.items() if any(amounts)}
    first = dict(reversed(found))
    ordered = sorted(found, key=lambda where: first[where[0]] != where[1])  # what a part is told once more comes last
    return dataclasses.replace(
        both,
        parts=tuple(place for place, _ in ordered),
        owners=tuple(owner for _, owner in ordered),
        change=tuple(found[where][0] for where in ordered),
        highest=tuple(found[where][1] for where in ordered),
        work=0.0,
        again=NOTHING,
        beside=(other.site, other.option),
    )
