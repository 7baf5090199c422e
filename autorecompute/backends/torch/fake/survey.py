"""Runs the steps of a model on fake tensors, one for each option, for the forecast of every config."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import logging
import time
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.torch.fake.live import BACKWARD, FORWARD, OUTSIDE, Segment, state_of
from autorecompute.backends.torch.fake.repeats import (
    NO_EXTENT,
    Extent,
    Row,
    cut,
    finer,
    held_to_the_end,
    lifetimes,
    moved,
    parts_of,
    segments_of,
)
from autorecompute.backends.torch.fake.steps import FakeSteps
from autorecompute.backends.torch.fake.tensors import is_fake
from autorecompute.backends.torch.find.detection import offered
from autorecompute.backends.torch.find.storages import Storages
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.records import (
    CHECKPOINT,
    CHUNK,
    DROP,
    EVERY_2ND,
    KEEP_MATMUL,
    NOTHING,
    Amount,
    OptionStep,
    Part,
    Steps,
)
from autorecompute.meters.host import HostMeter
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.fake.repeats import Cut, Lifetimes, Piece
    from autorecompute.backends.torch.fake.steps import Script, Take
    from autorecompute.backends.torch.fake.tensors import FakeLiveBytes
    from autorecompute.backends.torch.find.detection import Detected
    from autorecompute.backends.torch.switch.switchboard import Site, Switchboard
    from autorecompute.memory import Machine

    Survey = tuple[Steps | None, str]  # what steps take, or why nobody can tell


def interactions_of(found: Detected, board: Switchboard) -> Iterator[tuple[Choice, Choice]]:
    """Yield pairs of choices of which the second keeps what the first has, where both do something together."""
    names = {site.name for site in offered(found)}
    for one, other in found.interactions:
        if not {one, other} <= names:
            continue
        for options in itertools.product(board.sites[one].options, board.sites[other].options):
            pair = Choice(one, options[0]), Choice(other, options[1])
            if EVERY_2ND not in options and {effect.site for effect in board.resolve(pair)} == {one, other}:
                yield pair


def paths_of(found: Detected, board: Switchboard, pair: tuple[Choice, Choice]) -> list[str]:
    """Return the paths where both of a pair are on: an operator is dropped from a whole unit's graph, with its modules.

    Modules that are given one tensor lie in one unit.
    """
    one, other = (board.paths(choice) for choice in pair)
    if pair[0].option == DROP:
        return [path for path in one if any(is_within(inner, path) for inner in other)]
    units = {found.structure.unit_of(path) for path in other}
    return [path for path in one if found.structure.unit_of(path) in units]


def beyond(both: OptionStep, one: OptionStep, other: OptionStep) -> OptionStep:
    """Return the change of two choices to a step, less that of each alone."""
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


SAVED = {CHECKPOINT: 1.0, CHUNK: 1.0, DROP: 1.0, KEEP_MATMUL: 0.25}
"""Of what a site saves, an option saves at least this share."""

WORK = {CHECKPOINT: 1 / 3, CHUNK: 0.1, DROP: 0.05, KEEP_MATMUL: 0.1}
"""Work of a recompute of all saved tensors, as a share of a step."""


def rough_steps(found: Detected, board: Switchboard) -> Steps | None:
    """Return a step without recompute, and how it differs with each choice; ``None`` where a probe has seen no unit."""
    if not found.calls:
        return None
    choices = [Choice(site.name, option) for site in offered(found) for option in site.options if option in SAVED]
    return Steps(
        batch=found.batch,
        parts=tuple(_parts_of_blocks(found)),
        options=tuple(_option(choice, board.sites[choice.site], found) for choice in choices),
        later_bytes=0,
        has_own_loss=False,
    )


def _parts_of_blocks(found: Detected) -> list[Part]:
    """Return the forward passes of all units and of the head, and their backward passes in the other order."""
    place_of = found.structure.units.index
    units, owners = [*found.calls, ""], [*map(place_of, found.calls), place_of(found.calls[-1])]
    told = [
        (unit, owner, found.unit_bytes.get(unit, 0) // max(1, found.calls.count(unit)))
        for unit, owner in zip(units, owners, strict=True)
    ]
    forward = [Part(phase=FORWARD, name=unit, owner=owner, change=size, highest=size) for unit, owner, size in told]
    backward = [Part(phase=BACKWARD, name=unit, owner=owner, change=-size, highest=0) for unit, owner, size in told]
    return [*forward, *reversed(backward)]


def _option(choice: Choice, site: Site, found: Detected) -> OptionStep:
    whole = found.savings[site.name].at(found.batch)
    size = max(0.0, whole) * SAVED[choice.option] / len(site.occurrences)
    forward: dict[int, int] = collections.defaultdict(int)
    for path in site.occurrences:
        unit = found.structure.unit_of(path)
        places = [place for place, call in enumerate(found.calls) if call == unit] or [len(found.calls)]  # or the head
        for place in places:
            forward[place] += round(size / len(places))
    last = 2 * len(found.calls) + 1
    parts = [*forward, *(last - place for place in forward)]
    saved = list(forward.values())
    total = sum(found.unit_bytes.values())
    return OptionStep(
        site=choice.site,
        option=choice.option,
        units=tuple(found.structure.units_with(path) for path in site.occurrences),
        parts=tuple(parts),
        change=(*(-one for one in saved), *saved),
        highest=(*(0 for _ in saved), *saved),
        work=WORK[choice.option] * min(whole / total, 1.0) if total and whole > 0 else 0.0,
    )


_COMPUTED = (FORWARD, BACKWARD)  # the phases that recompute changes

SECONDS, SECONDS_ALONE = 20.0, 120.0
"""So much processor time fake steps may take, before real ones and where none follow; the choices that save most come
first."""

_LOG = logging.getLogger(__name__)


def survey_steps(
    model: Module, found: Detected, board: Switchboard, script: Script, machine: Machine | None = None
) -> Steps:
    """Run steps of the model on fake tensors, without recompute and with each choice, as :meth:`FakeSteps.taking`."""
    # Of a training that goes on.
    known_bytes = sum(one.nbytes for one in state_of(script.optimizers) if not is_fake(one))
    began, seconds = time.process_time(), SECONDS if machine is None else SECONDS_ALONE
    choices = [Choice(site.name, option) for site in offered(found) for option in site.options]
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    with fakes.prepared(board, machine) as (plain, take):
        survey = _Survey(take, plain, found)
        doubled = survey.doubled()
        taken = {
            choice: step
            for choice in choices
            if time.process_time() - began <= seconds and (step := survey.take([choice], board.paths(choice)))
        }
        met = {
            pair: step
            for pair in interactions_of(found, board)
            if time.process_time() - began <= seconds
            and taken.keys() >= set(pair)
            and (paths := paths_of(found, board, pair))
            and (step := survey.take(pair, paths))
        }
    pieces = cut(plain.events, len(found.calls))
    cuts = finer(pieces, [step.pieces for step in (*taken.values(), *met.values())])
    options = {choice: survey.option(choice, board.paths(choice), step, cuts) for choice, step in taken.items()}
    return Steps(
        batch=script.batch[1] if script.batch is not None else found.batch,
        parts=_parts(cuts, pieces, doubled, found),
        options=tuple(options.values()),
        interactions=tuple(
            beyond(survey.option(one, paths_of(found, board, (one, other)), step, cuts), options[one], options[other])
            for (one, other), step in met.items()
        ),
        later_bytes=max(0, plain.base - bytes_of(model) - known_bytes),
        has_own_loss=fakes.has_loss,
        batch_bytes=max(0, doubled.base - plain.base) if doubled is not None else 0,
        amount=sum(plain.work.values(), Amount()),
    )


def _parts(cuts: Sequence[Cut], plain: Sequence[Piece], doubled: _Taken | None, found: Detected) -> tuple[Part, ...]:
    """Return the parts of a step, with the share that does not grow with the batch, of which nothing may be known."""
    once, fixed = parts_of(plain, cuts), [NO_EXTENT] * len(cuts)
    if doubled is not None and segments_of(doubled.pieces) == segments_of(plain):
        both = zip(once, parts_of(doubled.pieces, cuts), strict=True)
        fixed = [Extent(2 * one.change - two.change, 2 * one.highest - two.highest) for one, two in both]
    return tuple(
        Part(
            phase=segment.phase,
            name=_name(segment, found),
            owner=_owner(segment, found),
            change=extent.change,
            highest=extent.highest,
            fixed_change=constant.change,
            fixed_highest=constant.highest,
        )
        for (_, segment, _), extent, constant in zip(cuts, once, fixed, strict=True)
    )


def _name(segment: Segment, found: Detected) -> str:
    """Return the unit's path; the head and what comes before the first unit have none."""
    is_head = segment.is_behind and segment.unit == len(found.calls) - 1
    return "" if is_head or segment.unit < 0 else found.calls[segment.unit]


def _owner(segment: Segment, found: Detected) -> int:
    """Return the unit whose recompute decides: what is behind a unit goes with it, and what comes before the first."""
    if segment.phase == OUTSIDE or not found.calls:
        return 0
    return found.structure.units.index(found.calls[max(segment.unit, 0)])


class _Taken(NamedTuple):
    """A step that was taken: its lifetimes are in its own segments, its pieces and its work those of a whole one."""

    row: Row
    base: int
    pieces: list[Piece]
    work: Amount
    lifetimes: Lifetimes


class _Survey:
    """Takes a step with each choice, and compares it with the one without."""

    def __init__(self, take: Take, plain: FakeLiveBytes, found: Detected) -> None:
        self._take, self._found = take, found
        whole, pieces = Row(found.calls, ()), cut(plain.events, len(found.calls))
        self._whole = _Taken(whole, plain.base, pieces, whole.work(plain, _COMPUTED), lifetimes(plain.events))
        self._outside = [piece for piece in pieces if piece[0].phase not in _COMPUTED]
        self._short = self._whole  # or without the units that are repeated, if the whole step follows from that
        if found.repeated:
            taken = self._step([], Row(found.calls, found.repeated))
            if taken.pieces == pieces:
                self._short = taken
            else:
                _LOG.debug("units that look alike take other memory: no step leaves one out")

    def doubled(self) -> _Taken | None:
        """Return the step without recompute at twice the batch; ``None`` where the model takes no other."""
        try:
            return self._step([], self._short.row, times=2)
        except Exception as error:  # noqa: BLE001  (the model's own code runs there, at a batch that nobody gave it)
            _LOG.debug("a step at twice the batch fails: %s", error)
            return None

    def take(self, choices: Sequence[Choice], paths: Sequence[str]) -> _Taken | None:
        """Return a step with these choices; ``None`` where it goes through other segments than one without."""
        structure = self._found.structure
        # The second unit tells of others where all have the choice or none has; a module with units in it runs whole.
        is_everywhere = all(choice.option != EVERY_2ND for choice in choices) and all(
            structure.unit_of(path) or not structure.units_with(path) for path in paths
        )
        taken = self._step(choices, self._short.row if is_everywhere else self._whole.row)
        if taken.row.skipped:
            held = held_to_the_end(self._short.lifetimes, taken.lifetimes)
            taken = taken._replace(pieces=taken.row.with_left_out(taken.pieces, held))
        if segments_of(self._whole.pieces) != segments_of(taken.pieces):
            _LOG.debug("a step with %s goes through other segments than one without", choices)
            return None
        return taken

    def option(self, choice: Choice, paths: Sequence[str], taken: _Taken, cuts: Sequence[Cut]) -> OptionStep:
        """Return the difference of a step with the choice."""
        structure = self._found.structure
        differing = self._differences(taken, cuts)
        parts, owners, change, highest = zip(*differing, strict=True) if differing else ((), (), (), ())
        again = taken.work.beyond(self._whole.work)
        return OptionStep(
            site=choice.site,
            option=choice.option,
            units=tuple(structure.units_with(path) for path in paths),
            parts=parts,
            change=change,
            highest=highest,
            work=again.cost / self._whole.work.cost if self._whole.work.cost else 0.0,
            again=again,
            owners=owners,
        )

    def _differences(self, taken: _Taken, cuts: Sequence[Cut]) -> list[tuple[int, int, int, int]]:
        """Return the parts in which a step differs from the one without recompute.

        For each the unit whose recompute decides about it, and what is added to its change and to its highest. Those
        that other units decide come last.
        """
        pairs = zip(cuts, parts_of(self._whole.pieces, cuts), parts_of(taken.pieces, cuts), strict=True)
        own = {
            place: (_owner(segment, self._found), other.change - one.change, other.highest - one.highest)
            for place, ((_, segment, _), one, other) in enumerate(pairs)
            if one != other
        }
        others = []
        for (place, owner), moved_bytes in self._moved(taken, cuts).items():
            if place not in own or owner == own[place][0]:
                continue
            # What stays was there when a forward part was at its highest; what goes earlier went after that.
            of_part, change, highest = own[place]
            is_forward = cuts[place][1].phase == FORWARD
            share = min(max(moved_bytes, min(highest, 0)), max(highest, 0)) if is_forward else 0
            others.append((place, owner, moved_bytes, share))
            own[place] = of_part, change - moved_bytes, highest - share
        return [*((place, *figures) for place, figures in own.items()), *others]

    def _moved(self, taken: _Taken, cuts: Sequence[Cut]) -> dict[tuple[int, int], int]:
        """Return bytes that go in another part than without recompute, as another unit keeps them, or no longer does.

        By the part and that unit.
        """
        plain = self._short if taken.row is self._short.row else self._whole
        row, both = taken.row, (plain.lifetimes, taken.lifetimes)
        told = [
            (whole, decider, segment, node, size)
            for segment, node, unit, size in moved(*both)
            for whole, decider in row.units(segment.unit, unit)
        ]
        for segment, node, unit, size in held_to_the_end(*both):
            last = row.all_of(segment.unit)[-1]
            told += [(last, decider, segment, node, size) for decider in row.all_of(unit)]
        sizes: dict[tuple[int, int], int] = collections.defaultdict(int)
        for whole, decider, segment, node, size in told:
            at = dataclasses.replace(segment, unit=whole)
            places = (place for place, (_, other, nodes) in enumerate(cuts) if other == at and node in nodes)
            if (place := next(places, None)) is not None:
                sizes[place, _owner(Segment(BACKWARD, decider), self._found)] += size
        return sizes

    def _step(self, choices: Sequence[Choice], row: Row, times: int = 1) -> _Taken:
        """Return a step with these choices; a whole one where one without the units that are left out cannot tell."""
        step = self._take(choices, row.skipped, times=times)
        pieces = [piece for piece in cut(step.events, row.calls) if piece[0].phase in _COMPUTED]
        if row.skipped:
            order = [segment for segment, _ in self._whole.pieces if segment.phase in _COMPUTED]
            whole = row.whole(order, pieces)
            if whole is None:
                return self._step(choices, self._whole.row, times)
            pieces = whole
        # The optimizer's step is the same whatever is recomputed, and at every batch.
        return _Taken(row, step.base, [*pieces, *self._outside], row.work(step, _COMPUTED), lifetimes(step.events))


def bytes_of(model: Module) -> int:
    """Return the bytes of parameters and buffers."""
    storages = Storages()
    return sum(storages.see(tensor)[1] for tensor in (*model.parameters(), *model.buffers()))


def surveyed(root: Module, survey: Callable[[], Survey]) -> tuple[Survey, int]:
    """Survey the model, and weigh what that leaves in this process; 0 where an allocator of its own counts tensors."""
    if next(root.parameters()).device.type != "cpu":
        return survey(), 0
    meter = HostMeter()
    meter.release()
    held_bytes = meter.held_bytes()
    told = survey()
    meter.release()
    return told, max(0, meter.held_bytes() - held_bytes)
