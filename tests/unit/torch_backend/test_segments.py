"""Peaks of mixes, put together from one step for each option."""

from __future__ import annotations

import numpy as np
import pytest

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.live import Event, Segment
from autorecompute.backends.torch.options import CHECKPOINT, KEEP_MATMUL
from autorecompute.backends.torch.segments import DifferentStepsError, Segments
from autorecompute.plans import Choice
from tiny_models import call_of, make


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_peak_of_every_mix_follows_from_one_step_for_each_option(name):
    """The first blocks checkpointed, others not: as a fake step of that mix says, to a few hundredths of a percent."""
    training = make(name, layers=3)
    found = detect(training.model, *call_of(training))
    board = found.switchboard(training.model)
    steps = FakeSteps(training.model, found.structure.units, Script(*call_of(training)), found.values)
    block = found.blocks[0]
    whole = [[], [Choice(block, CHECKPOINT)], [Choice(block, KEEP_MATMUL)]]
    segments = Segments([steps.run(board, choices).events for choices in whole], 3)
    mixes = {(1, 0, 0): (CHECKPOINT, 1), (1, 1, 0): (CHECKPOINT, 2), (2, 0, 0): (KEEP_MATMUL, 1)}
    forecast = segments.peaks(np.array(list(mixes)))
    meters = [steps.run(board, [Choice(block, option, count)]) for option, count in mixes.values()]
    assert forecast == pytest.approx([meter.peak - meter.base for meter in meters], rel=5e-4)
    assert len(set(forecast)) == 3


def test_steps_of_different_shape_are_not_mixed():
    """Where a unit is missing in one step nothing is put together."""
    first, second = (Event(Segment("forward", unit), 1, unit) for unit in (0, 1))
    with pytest.raises(DifferentStepsError):
        Segments([[first, second], [first]], 2)
