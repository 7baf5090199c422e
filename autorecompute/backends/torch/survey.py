"""What every choice does to the memory of a step, from steps on fake tensors before a real one has run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from autorecompute.backends.torch.extra import OUTSIDE_UNITS, OptionStep, Part, Steps
from autorecompute.backends.torch.fakes import FakeSteps
from autorecompute.backends.torch.live import BACKWARD, FORWARD, OUTSIDE
from autorecompute.backends.torch.segments import cut
from autorecompute.backends.torch.space import offered
from autorecompute.backends.torch.storages import Storages
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.fake_step import FakeStep
    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.live import Segment
    from autorecompute.backends.torch.switchboard import Switchboard

    Cut = Sequence[tuple[Segment, int, int]]

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
    sites = offered(found)
    choices = [Choice(site.name, option) for site in sites for option in site.options]
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    steps = fakes.run_each(board, [[], *([choice] for choice in choices)], SECONDS)
    plain, *others = steps
    order, parts = cut(plain.events), _parts(plain, found)
    options = [
        option
        for choice, step in zip(choices, others, strict=False)
        if (option := _option(choice, board.paths(choice), step, (order, plain.work), found)) is not None
    ]
    return Steps(
        batch=script.batch[1] if script.batch is not None else found.batch,
        parts=parts,
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


def _option(
    choice: Choice, paths: Sequence[str], step: FakeStep, plain: tuple[Cut, float], found: Detected
) -> OptionStep | None:
    """How a step with the choice differs; ``None`` where it goes through other parts."""
    order, work = plain
    pairs = list(zip(_within(order), _within(cut(step.events)), strict=False))
    if [one[0] for one, _ in pairs] != [other[0] for _, other in pairs] or len(_within(order)) != len(pairs):
        _LOG.info("a step with %s goes through other parts than one without", choice)
        return None
    differing = [
        (place, other[1] - one[1], other[2] - one[2]) for place, (one, other) in enumerate(pairs) if one != other
    ]
    units = found.structure.units
    owners = (found.structure.unit_of(path) for path in paths)
    return OptionStep(
        site=choice.site,
        option=choice.option,
        units=tuple(units.index(unit) if unit else OUTSIDE_UNITS for unit in owners),
        parts=tuple(place for place, _, _ in differing),
        change=tuple(change for _, change, _ in differing),
        highest=tuple(highest for _, _, highest in differing),
        work=max(0.0, step.work / work - 1) if work else 0.0,
    )


def _within(parts: Cut) -> list[tuple[Segment, int, int]]:
    """The parts up to the end of the backward pass: the optimizer's step is the same whatever is recomputed."""
    return [part for part in parts if part[0].phase in {FORWARD, BACKWARD}]


def _bytes_of(model: Module) -> int:
    """What parameters and buffers take."""
    storages = Storages()
    return sum(storages.see(tensor)[1] for tensor in (*model.parameters(), *model.buffers()))
