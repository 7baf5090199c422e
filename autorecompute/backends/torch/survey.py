"""What every choice does to the memory of a step, from steps on fake tensors before a real one has run."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from autorecompute.backends.torch.extra import OUTSIDE_UNITS, OptionStep, Part, Steps
from autorecompute.backends.torch.fakes import FakeSteps
from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE
from autorecompute.backends.torch.options import EVERY_2ND
from autorecompute.backends.torch.repeats import DifferentStepsError, Row
from autorecompute.backends.torch.segments import cut
from autorecompute.backends.torch.space import offered
from autorecompute.backends.torch.storages import Storages
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.fake_step import FakeStep
    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.live import Segment
    from autorecompute.backends.torch.switchboard import Switchboard

    Cut = list[tuple[Segment, int, int]]

_COMPUTED = (FORWARD, BACKWARD)
"""The phases that recompute changes."""

SECONDS = 20.0
"""So much processor time fake steps may take; the choices that save most come first."""

_LOG = logging.getLogger(__name__)


def survey_steps(model: Module, found: Detected, board: Switchboard, script: Script) -> Steps:
    """What steps of the model take without recompute and with each choice.

    Args:
        model: The model.
        found: What a probe found in it.
        board: Its switches.
        script: What the script does around the model.

    Raises:
        UnknownValueError: A value is looked at that the probe has not seen.
        RuntimeError: An operator cannot be run on fake tensors.
    """
    began = time.process_time()
    choices = [Choice(site.name, option) for site in offered(found) for option in site.options]
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    with fakes.prepared(board) as take:
        plain = take([], optimizes=True)
        survey = _Survey(take, plain, found)
        options = [
            option
            for choice in choices
            if time.process_time() - began <= SECONDS and (option := survey.option(choice, board.paths(choice)))
        ]
    return Steps(
        batch=script.batch[1] if script.batch is not None else found.batch,
        parts=_parts(plain, found),
        options=tuple(options),
        later_bytes=max(0, plain.base - _bytes_of(model)),
        has_own_loss=fakes.has_loss,
    )


def _parts(step: FakeStep, found: Detected) -> tuple[Part, ...]:
    units = found.structure.units
    return tuple(
        Part(
            phase=segment.phase,
            name=found.calls[segment.unit] if 0 <= segment.unit < len(found.calls) else "",
            owner=_owner(segment, found, units),
            change=change,
            highest=highest,
        )
        for segment, change, highest in cut(step.events)
    )


def _owner(segment: Segment, found: Detected, units: Sequence[str]) -> int:
    """The unit whose recompute decides: the head goes with the last call, and what comes before the first with it."""
    if segment.phase == OUTSIDE or not found.calls:
        return 0
    return units.index(found.calls[min(max(segment.unit, 0), len(found.calls) - 1)])


class _Survey:
    """Takes a step with each choice, and compares it with the one without.

    Args:
        take: Takes a step.
        plain: The step without recompute.
        found: What a probe found in the model.
    """

    def __init__(self, take: Callable[..., FakeStep], plain: FakeStep, found: Detected) -> None:
        self._take, self._found = take, found
        self._plain = _within(cut(plain.events))
        self._whole = Row(found.calls, ())
        self._work = self._whole.work(plain, _COMPUTED)
        self._row = self._shortest()

    def _shortest(self) -> Row:
        """Without the units that are repeated, if the step without recompute then comes out as it is."""
        row = Row(self._found.calls, self._found.repeated)
        if row.skipped and self._pieces([], row)[0] != self._plain:
            _LOG.info("units that look alike take other memory: no step leaves one out")
            return self._whole
        return row

    def option(self, choice: Choice, paths: Sequence[str]) -> OptionStep | None:
        """How a step with the choice differs; ``None`` where it goes through other parts."""
        units = self._found.structure.units
        owners = [self._found.structure.unit_of(path) for path in paths]
        # The second unit tells of others where all have the choice, and none without one has a part in it.
        is_everywhere = choice.option != EVERY_2ND and all(owners)
        pieces, work = self._pieces([choice], self._row if is_everywhere else self._whole)
        if [one[0] for one in self._plain] != [other[0] for other in pieces]:
            _LOG.info("a step with %s goes through other parts than one without", choice)
            return None
        pairs = enumerate(zip(self._plain, pieces, strict=True))
        differing = [(place, other[1] - one[1], other[2] - one[2]) for place, (one, other) in pairs if one != other]
        return OptionStep(
            site=choice.site,
            option=choice.option,
            units=tuple(units.index(unit) if unit else OUTSIDE_UNITS for unit in owners),
            parts=tuple(place for place, _, _ in differing),
            change=tuple(change for _, change, _ in differing),
            highest=tuple(highest for _, _, highest in differing),
            work=max(0.0, work / self._work - 1) if self._work else 0.0,
        )

    def _pieces(self, choices: Sequence[Choice], row: Row) -> tuple[Cut, float]:
        """The segments of a step with these choices, and its work; of a whole one where the row cannot tell."""
        step = self._take(choices, row.skipped)
        pieces = _within(cut(step.events))
        if row.skipped:
            try:
                pieces = row.whole([segment for segment, _, _ in self._plain], pieces)
            except DifferentStepsError:
                return self._pieces(choices, self._whole)
        return pieces, row.work(step, _COMPUTED)


def _within(parts: Cut) -> Cut:
    """The parts up to the end of the backward pass: the optimizer's step is the same whatever is recomputed."""
    return [part for part in parts if part[0].phase in _COMPUTED]


def _bytes_of(model: Module) -> int:
    """What parameters and buffers take."""
    storages = Storages()
    return sum(storages.see(tensor)[1] for tensor in (*model.parameters(), *model.buffers()))
