"""What each choice adds to the parts of a step, at any count and beside the choices that cover it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from autorecompute.backends.torch.amounts import Amount
from autorecompute.backends.torch.extra import OptionStep

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.backends.torch.extra import Steps
    from autorecompute.plans import Choice, Config


@dataclass(frozen=True, kw_only=True)
class Column:
    """What one choice adds to a step.

    Attributes:
        occurrences: How many there are.
        parts: The parts of a step that differ, by their places, of shape ``[parts]``. Those that are told a second time
            are the last ones.
        once: How many are told for the first time.
        change: What is added to the change of each of them where all occurrences are on.
        highest: What is added to the highest of each of them then.
        work: What is computed once more then, as a share of a step.
        again: The same in full.
        shares: At which share the choice is on in each part by its count, of shape ``[occurrences + 1, parts]``.
        covered: By the place of each column that covers this one: the share of each part, and of all occurrences in
            the last entry, that lies in its first occurrences, of shape ``[its occurrences + 1, parts + 1]``.
        both: Of two choices that meet, where this is about such: the place of each, and by its count how many of these
            occurrences lie in its own.
    """

    occurrences: int
    parts: np.ndarray
    once: int
    change: np.ndarray
    highest: np.ndarray
    work: float
    again: Amount
    shares: np.ndarray
    covered: dict[int, np.ndarray] = field(default_factory=dict)
    both: dict[int, np.ndarray] = field(default_factory=dict)

    def share_in(self, config: Config, choice: Choice) -> float:
        """At which share of its occurrences a config has the choice on."""
        on = next((on for on in config.choices if on.covers(choice)), None)
        if on is None:
            return 0.0
        return 1.0 if on.count is None else min(on.count / self.occurrences, 1.0)

    def add(self, on: np.ndarray, rows: np.ndarray, change: np.ndarray, highest: np.ndarray) -> None:
        """Add what the choice does to the parts of steps.

        Args:
            on: At which share it is on in each of its parts, of shape ``[rows, parts]``.
            rows: The steps, of shape ``[rows]``.
            change: The change of each part of every step.
            highest: The highest of them.
        """
        again = range(self.once, len(self.parts))  # of these a part may have several
        for told in (slice(None, self.once), *(slice(at, at + 1) for at in again)):
            where = np.ix_(rows, self.parts[told])
            change[where] += on[:, told] * self.change[told]
            highest[where] += on[:, told] * self.highest[told]

    def counts(self, shares: np.ndarray) -> np.ndarray:
        """Return the counts of these shares of the occurrences."""
        found: np.ndarray = np.rint(shares * self.occurrences).astype(int)
        return found

    def met(self, counts: np.ndarray) -> np.ndarray:
        """Return how many occurrences are on by the counts of the two choices, of shape ``[configs, columns]``."""
        found: np.ndarray = np.min([table[counts[:, place]] for place, table in self.both.items()], axis=0)
        return found

    def on(self, counts: np.ndarray, at: int) -> tuple[np.ndarray, np.ndarray]:
        """At which share the choice makes something again: in each of its parts, and of all its occurrences.

        Args:
            counts: The counts of all columns, of shape ``[configs, columns]``.
            at: The place of this column among them.
        """
        hidden = [table[counts[:, outer]] for outer, table in self.covered.items()]
        most = np.max(hidden, axis=0) if hidden else 0.0
        left = np.maximum(self.shares[counts[:, at]] - most, 0.0)
        return left[:, :-1], left[:, -1]


def columns_of(
    steps: Steps, choices: Sequence[Choice], covers: Mapping[str, Collection[str]], scale: float
) -> list[Column]:
    """Return a column for each of these choices, one that adds nothing where no step was run with it.

    Then those of meetings.

    Args:
        steps: What steps take.
        choices: What can be on.
        covers: The sites that each site makes again along with itself.
        scale: How many times as large activations are as in the steps.
    """
    known = {(option.site, option.option): option for option in steps.options}
    owners = [part.owner for part in steps.parts]
    options = [known.get((choice.site, choice.option), _nothing(choice)) for choice in choices]
    on = {(choice.site, choice.option): place for place, choice in enumerate(choices)}
    options += [one for one in steps.meetings if {(one.site, one.option), one.beside} <= on.keys()]
    columns = [_column(option, owners, scale) for option in options]
    for place, outer in enumerate(choices):
        counts = range(columns[place].occurrences + 1)
        for column, option in zip(columns, options, strict=True):
            inside = functools.partial(_inside, option, options[place])
            if (outer.site, outer.option) in {(option.site, option.option), option.beside} and option.beside:
                column.both[place] = np.array([len(inside(count)) for count in counts])
            if not {option.site, *option.beside[:1]}.isdisjoint(covers.get(outer.site, ())):
                column.covered[place] = _table(option, owners, [inside(count) for count in counts])
    return columns


def _nothing(choice: Choice) -> OptionStep:
    return OptionStep(site=choice.site, option=choice.option, units=(), parts=(), change=(), highest=(), work=0.0)


def _column(option: OptionStep, owners: Sequence[int], scale: float) -> Column:
    occurrences = max(len(option.units), 1)
    return Column(
        occurrences=occurrences,
        parts=np.array(option.parts, dtype=int),
        once=len(set(option.parts)),
        change=np.array(option.change, dtype=np.float64) * scale,
        highest=np.array(option.highest, dtype=np.float64) * scale,
        work=option.work,
        again=option.again,
        shares=_table(option, owners, [set(range(count)) for count in range(occurrences + 1)]),
    )


def _inside(option: OptionStep, outer: OptionStep, count: int) -> set[int]:
    """Return the occurrences that lie in the first ones of another choice, by their units.

    Where both have occurrences in no unit, of each as large a share.
    """
    units: set[int] = set().union(*outer.units[:count])
    loose = [place for place, own in enumerate(option.units) if not own]
    of_outer = [not own for own in outer.units]
    share = sum(of_outer[:count]) / max(sum(of_outer), 1)
    within = {place for place, own in enumerate(option.units) if own and units.issuperset(own)}
    return within | set(loose[: math.ceil(len(loose) * share)])


def _table(option: OptionStep, owners: Sequence[int], chosen: Sequence[Collection[int]]) -> np.ndarray:
    """Return the share of the chosen occurrences in each part that differs, and of all in the last entry.

    A line for each.
    """
    units = option.units
    parts = option.owners or [owners[part] for part in option.parts]
    is_in = np.array([[not own or part in own for part in parts] for own in units], dtype=bool)
    is_in = is_in.reshape(len(units), len(parts))
    is_in[:, ~is_in.any(axis=0)] = True  # what has no occurrence in its own unit depends on all of them
    groups = np.column_stack([is_in, np.ones(len(units), dtype=bool)]).astype(np.float64)
    is_chosen = np.array([[place in line for place in range(len(units))] for line in chosen], dtype=np.float64)
    shares: np.ndarray = is_chosen.reshape(len(chosen), len(units)) @ groups / np.maximum(groups.sum(axis=0), 1)
    return shares
