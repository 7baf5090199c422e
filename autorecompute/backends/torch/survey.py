"""What every choice does to the memory of a step, from steps on fake tensors before a real one has run."""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.torch.amounts import Amount
from autorecompute.backends.torch.extra import OptionStep, Part, Steps
from autorecompute.backends.torch.fakes import FakeSteps
from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE, Segment
from autorecompute.backends.torch.options import EVERY_2ND
from autorecompute.backends.torch.repeats import DifferentStepsError, Row
from autorecompute.backends.torch.segments import NOTHING, Cuts, Extent, cut, kept, lifetimes
from autorecompute.backends.torch.space import offered
from autorecompute.backends.torch.storages import Storages
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.fake_step import FakeStep
    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.segments import Lifetimes, Piece
    from autorecompute.backends.torch.speeds import Speeds
    from autorecompute.backends.torch.switchboard import Switchboard

_COMPUTED = (FORWARD, BACKWARD)
"""The phases that recompute changes."""

SECONDS, SECONDS_ALONE = 20.0, 120.0
"""So much processor time fake steps may take, before real ones and where none follow; the choices that save most come
first."""

_LOG = logging.getLogger(__name__)


def survey_steps(
    model: Module, found: Detected, board: Switchboard, script: Script, speeds: Speeds | None = None
) -> Steps:
    """What steps of the model take without recompute and with each choice.

    Args:
        model: The model.
        found: What a probe found in it.
        board: Its switches.
        script: What the script does around the model.
        speeds: Those of the machine whose time is to be estimated; ``None`` where real steps follow, which tell it.

    Raises:
        UnknownValueError: A value is looked at that the probe has not seen.
        RuntimeError: An operator cannot be run on fake tensors.
    """
    began, seconds = time.process_time(), SECONDS if speeds is None else SECONDS_ALONE
    choices = [Choice(site.name, option) for site in offered(found) for option in site.options]
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    with fakes.prepared(board, speeds) as take:
        plain = take([], optimizes=True)
        doubled, survey = _doubled(take), _Survey(take, plain, found)
        taken = {
            choice: step
            for choice in choices
            if time.process_time() - began <= seconds and (step := survey.take(choice, board.paths(choice)))
        }
    pieces = cut(plain.events, len(found.calls))
    cuts = Cuts(pieces, [step.pieces for step in taken.values()])
    return Steps(
        batch=script.batch[1] if script.batch is not None else found.batch,
        parts=_parts(cuts, pieces, doubled, found),
        options=tuple(survey.option(choice, board.paths(choice), step, cuts) for choice, step in taken.items()),
        later_bytes=max(0, plain.base - bytes_of(model)),
        has_own_loss=fakes.has_loss,
        batch_bytes=max(0, doubled.base - plain.base) if doubled is not None else 0,
        amount=sum(plain.work.values(), Amount()),
    )


def _doubled(take: Callable[..., FakeStep]) -> FakeStep | None:
    """The step without recompute at twice the batch; ``None`` where the model takes no other."""
    try:
        return take([], optimizes=True, times=2)
    except Exception as error:  # noqa: BLE001  (the model's own code runs there, at a batch that nobody gave it)
        _LOG.info("a step at twice the batch fails: %s", error)
        return None


def _fixed(cuts: Cuts, plain: Sequence[Piece], doubled: FakeStep | None, calls: int) -> list[Extent]:
    """What of each part does not grow with the batch; nothing where nobody knows."""
    twice = cut(doubled.events, calls) if doubled is not None else []
    if [piece.segment for piece in twice] != [piece.segment for piece in plain]:
        return [NOTHING] * len(cuts.segments)
    both = zip(cuts.parts(plain), cuts.parts(twice), strict=True)
    return [Extent(2 * one.change - two.change, 2 * one.highest - two.highest) for one, two in both]


def _parts(cuts: Cuts, plain: Sequence[Piece], doubled: FakeStep | None, found: Detected) -> tuple[Part, ...]:
    units = found.structure.units
    told = zip(cuts.segments, cuts.parts(plain), _fixed(cuts, plain, doubled, len(found.calls)), strict=True)
    return tuple(
        Part(
            phase=segment.phase,
            name=_name(segment, found),
            owner=_owner(segment, found, units),
            change=extent.change,
            highest=extent.highest,
            fixed_change=fixed.change,
            fixed_highest=fixed.highest,
        )
        for segment, extent, fixed in told
    )


def _name(segment: Segment, found: Detected) -> str:
    """The unit's path; the head and what comes before the first unit have none."""
    is_head = segment.is_behind and segment.unit == len(found.calls) - 1
    return "" if is_head or segment.unit < 0 else found.calls[segment.unit]


def _owner(segment: Segment, found: Detected, units: Sequence[str]) -> int:
    """The unit whose recompute decides: what is behind a unit goes with it, and what comes before the first as well."""
    if segment.phase == OUTSIDE or not found.calls:
        return 0
    return units.index(found.calls[max(segment.unit, 0)])


class _Taken(NamedTuple):
    """A step that was taken.

    Attributes:
        row: The units that were left out.
        pieces: The segments of the whole step.
        work: What it computes.
        lifetimes: When its bytes came and went, in segments of the step as it was taken.
    """

    row: Row
    pieces: list[Piece]
    work: Amount
    lifetimes: Lifetimes


class _Difference(NamedTuple):
    """How a part of a step differs from that of another step.

    Attributes:
        place: The part.
        owner: The unit whose recompute decides about it.
        change: What is added to its change.
        highest: What is added to its highest.
    """

    place: int
    owner: int
    change: int
    highest: int


class _Survey:
    """Takes a step with each choice, and compares it with the one without.

    Args:
        take: Takes a step.
        plain: The step without recompute.
        found: What a probe found in the model.
    """

    def __init__(self, take: Callable[..., FakeStep], plain: FakeStep, found: Detected) -> None:
        self._take, self._found = take, found
        whole, pieces = Row(found.calls, ()), cut(plain.events, len(found.calls))
        self._whole = _Taken(whole, pieces, whole.work(plain, _COMPUTED), lifetimes(plain.events))
        self._outside = [piece for piece in pieces if piece.segment.phase not in _COMPUTED]
        self._short = self._shortest()

    def _shortest(self) -> _Taken:
        """Without the units that are repeated, if the step without recompute then comes out as it is."""
        row = Row(self._found.calls, self._found.repeated)
        if not row.skipped:
            return self._whole
        taken = self._step([], row)
        if taken.pieces != self._whole.pieces:
            _LOG.info("units that look alike take other memory: no step leaves one out")
            return self._whole
        return taken

    def take(self, choice: Choice, paths: Sequence[str]) -> _Taken | None:
        """A step with the choice; ``None`` where it goes through other segments than one without."""
        owners = [self._found.structure.unit_of(path) for path in paths]
        # The second unit tells of others where all have the choice, and none without one has a part in it.
        is_everywhere = choice.option != EVERY_2ND and all(owners)
        taken = self._step([choice], self._short.row if is_everywhere else self._whole.row)
        if [one.segment for one in self._whole.pieces] != [other.segment for other in taken.pieces]:
            _LOG.info("a step with %s goes through other segments than one without", choice)
            return None
        return taken

    def option(self, choice: Choice, paths: Sequence[str], taken: _Taken, cuts: Cuts) -> OptionStep:
        """How a step with the choice differs."""
        structure = self._found.structure
        differing = self._differences(taken, cuts)
        again = taken.work.beyond(self._whole.work)
        return OptionStep(
            site=choice.site,
            option=choice.option,
            units=tuple(structure.units_with(path) for path in paths),
            parts=tuple(one.place for one in differing),
            change=tuple(one.change for one in differing),
            highest=tuple(one.highest for one in differing),
            work=again.cost / self._whole.work.cost if self._whole.work.cost else 0.0,
            again=again,
            owners=tuple(one.owner for one in differing),
        )

    def _differences(self, taken: _Taken, cuts: Cuts) -> list[_Difference]:
        """How a step differs from the one without recompute; what is shared by units comes last."""
        pairs = zip(cuts.segments, cuts.parts(self._whole.pieces), cuts.parts(taken.pieces), strict=True)
        own = {
            place: _Difference(place, self._owner(segment), other.change - one.change, other.highest - one.highest)
            for place, (segment, one, other) in enumerate(pairs)
            if one != other
        }
        shared = {one.place: one for one in self._shared(taken, cuts, own)}
        for place, one in shared.items():
            all_of_it = own[place]
            change, highest = all_of_it.change - one.change, all_of_it.highest - one.highest
            own[place] = all_of_it._replace(change=change, highest=highest)
        return [*own.values(), *shared.values()]

    def _shared(self, taken: _Taken, cuts: Cuts, own: Mapping[int, _Difference]) -> Iterator[_Difference]:
        """What parts let go no more because another unit than theirs keeps it."""
        plain = self._short if taken.row is self._short.row else self._whole
        places = {segment: place for place, segment in enumerate(cuts.segments)}
        for segment, keeper, size in kept(plain.lifetimes, taken.lifetimes):
            place = places[dataclasses.replace(segment, unit=taken.row.unit(segment.unit))]
            owner = self._owner(Segment(BACKWARD, taken.row.unit(keeper)))
            if place in own and owner != own[place].owner:
                yield _Difference(place, owner, size, min(size, max(own[place].highest, 0)))

    def _owner(self, segment: Segment) -> int:
        return _owner(segment, self._found, self._found.structure.units)

    def _step(self, choices: Sequence[Choice], row: Row) -> _Taken:
        """A step with these choices; a whole one where one without the units that are left out cannot tell."""
        step = self._take(choices, row.skipped)
        pieces = [piece for piece in cut(step.events, row.calls) if piece.segment.phase in _COMPUTED]
        if row.skipped:
            order = [piece.segment for piece in self._whole.pieces if piece.segment.phase in _COMPUTED]
            try:
                pieces = row.whole(order, pieces)
            except DifferentStepsError:
                return self._step(choices, self._whole.row)
        # The optimizer's step is the same whatever is recomputed.
        return _Taken(row, [*pieces, *self._outside], row.work(step, _COMPUTED), lifetimes(step.events))


def bytes_of(model: Module) -> int:
    """What parameters and buffers take."""
    storages = Storages()
    return sum(storages.see(tensor)[1] for tensor in (*model.parameters(), *model.buffers()))
