"""What the peak of one rank is made of: parameters, gradients, optimizer state, what is gathered, and activations."""

from __future__ import annotations

import collections
import itertools
from typing import TYPE_CHECKING, NamedTuple

import torch

from autorecompute.backends.torch.collectives import GATHERED, GRADIENTS, PARAMETERS
from autorecompute.backends.torch.fakes import FakeSteps
from autorecompute.backends.torch.repeats import Row
from autorecompute.backends.torch.segments import usual_order
from autorecompute.backends.torch.survey import bytes_of
from autorecompute.memory import RankPeak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.extra import Steps
    from autorecompute.backends.torch.fake_step import FakeStep
    from autorecompute.backends.torch.fakes import Script
    from autorecompute.backends.torch.live import Event, Segment
    from autorecompute.backends.torch.tuned import Tuned
    from autorecompute.plans import Config

    Kinds = collections.Counter[str]

STATE, ACTIVATIONS = "state", "activations"
"""Kinds beside those of ``collectives``: what an optimizer had before its first step, and all else, with the batch."""


class _Part(NamedTuple):
    """What a segment does to the bytes of each kind.

    Attributes:
        segment: Which.
        highest: By how many bytes when most are alive.
        change: By how many in the end.
    """

    segment: Segment
    highest: Kinds
    change: Kinds


def divide(
    model: Module, tuned: Tuned, script: Script, steps: Steps, configs: Iterable[Config]
) -> tuple[RankPeak, ...]:
    """Return what the peak of one rank is made of with each config.

    Args:
        model: The model.
        tuned: What was found in it, and its switches.
        script: What the script does around the model.
        steps: What steps take: the optimizer's state is told by it, and not made anew.
        configs: What is recomputed.
    """
    found, told = tuned.found, []
    fakes = FakeSteps(model, found.structure.units, script, found.values)
    with fakes.taking(tuned.board) as take:
        for config in configs:
            step, kinds = _divided(take, config, found.calls, _alike(tuned, config))
            told.append(
                RankPeak(
                    config=config,
                    ranks=torch.distributed.get_world_size(),
                    parameter_bytes=kinds[PARAMETERS],
                    gradient_bytes=kinds[GRADIENTS],
                    state_bytes=bytes_of(model) + steps.later_bytes - step.base + kinds[STATE],
                    gathered_bytes=kinds[GATHERED],
                    activation_bytes=kinds[ACTIVATIONS],
                )
            )
    return tuple(told)


def _alike(tuned: Tuned, config: Config) -> frozenset[str]:
    """Return the units that do what the one before and those behind them do, with the config, too."""
    found = tuned.found
    on: dict[str, list[str]] = {unit: [] for unit in found.structure.units}
    for choice in sorted(config.choices, key=str):
        for path in tuned.board.paths(choice):
            for place in found.structure.units_with(path):
                on[found.structure.units[place]].append(f"{choice.site}:{choice.option}")
    calls = found.calls
    return frozenset(
        unit
        for place, unit in enumerate(calls)
        if unit in found.repeated and all(on[other] == on[unit] for other in calls[place - 1 : place + 3])
    )


def _divided(
    take: Callable[..., FakeStep], config: Config, calls: Sequence[str], skipped: frozenset[str]
) -> tuple[FakeStep, Kinds]:
    """Return a step, and the bytes of each kind at its peak; a whole step where one without some units cannot tell."""
    step, row = take(config.choices, skipped), Row(calls, skipped)
    parts = [_part(step, segment, events) for segment, events in itertools.groupby(step.events, _segment)]
    if not skipped:
        return step, _at_peak(step, parts)
    known, taken = {part.segment: part for part in parts}, [part.segment for part in parts]
    order = usual_order(row.calls)
    if taken != [segment for segment in order if segment in known]:
        return _divided(take, config, calls, frozenset())
    stand_ins = row.stand_ins(usual_order(len(calls)), order)
    return step, _at_peak(step, [known[one] for one in stand_ins if one in known])


def _at_peak(step: FakeStep, parts: Iterable[_Part]) -> Kinds:
    """Return the bytes of each kind when most are alive."""
    now: Kinds = collections.Counter()
    for number, size in step.held.items():
        now[STATE if number in step.state else step.kinds.get(number, ACTIVATIONS)] += size
    peak = now
    for part in parts:
        highest = _plus(now, part.highest)
        if sum(highest.values()) > sum(peak.values()):
            peak = highest
        now = _plus(now, part.change)
    return peak


def _part(step: FakeStep, segment: Segment, events: Iterable[Event]) -> _Part:
    now: Kinds = collections.Counter()
    highest, most = now.copy(), 0
    for event in events:
        now[step.kinds.get(event.storage, ACTIVATIONS)] += event.change
        if event.change > 0 and now.total() > most:
            highest, most = now.copy(), now.total()
    return _Part(segment, highest, now)


def _segment(event: Event) -> Segment:
    return event.segment


def _plus(one: Kinds, other: Kinds) -> Kinds:
    """Return the sum; what is negative stays so."""
    total = one.copy()
    total.update(other)
    return total
