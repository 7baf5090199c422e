"""Steps that leave out units which do what the one before them does."""

import dataclasses

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.live import Segment
from autorecompute.backends.torch.repeats import DifferentStepsError, Row
from autorecompute.backends.torch.segments import Extent, Piece
from autorecompute.backends.torch.survey import survey_steps
from tiny_models import call_of, make

LAYERS = 5


def surveyed(model, call, optimizer):
    """The units that repeat, and what steps take with them left out and with all of them."""
    found = detect(model, *call)
    board, script = found.switchboard(model), Script(*call, (optimizer,))
    whole = dataclasses.replace(found, repeated=frozenset())
    survey_steps(model, whole, board, script)  # the first of all makes what torch keeps for later ones
    return found.repeated, survey_steps(model, found, board, script), survey_steps(model, whole, board, script)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "encoder"])
def test_nothing_is_lost_where_units_are_left_out(name):
    """Every part of every step is the same to the byte, and so is its work, without the third and fourth of five."""
    training = make(name, layers=LAYERS)
    optimizer = torch.optim.AdamW(training.model.parameters())
    repeated, brief, whole = surveyed(training.model, call_of(training), optimizer)
    assert [path.rpartition(".")[2] for path in sorted(repeated)] == ["2", "3"]
    assert brief == whole


class Keeping(nn.Module):
    """Blocks whose results are kept until the end, the third one's in a type of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x):
        """The sum of what all blocks gave."""
        kept = []
        for place, block in enumerate(self.blocks):
            x = block(x)
            kept.append(x.double() if place == 2 else x)
        return sum(one.sum() for one in kept)


def test_units_whose_results_are_used_elsewhere_are_not_left_out():
    """What is done with each unit's result is no part of the unit: the steps are whole ones."""
    torch.manual_seed(0)
    model = Keeping()
    repeated, brief, whole = surveyed(model, ((torch.randn(4, 16),), {}), torch.optim.SGD(model.parameters()))
    assert repeated
    assert brief == whole


class Growing(nn.Module):
    """A block that is given one more tensor."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.GELU())

    def forward(self, x, other):
        """What it makes of both."""
        return self.inner(x) + other


class Mixed(nn.Module):
    """Blocks of which every second is given another tensor."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Growing() for _ in range(LAYERS))

    def forward(self, x):
        """The result of the last."""
        others = torch.ones_like(x), torch.zeros_like(x)
        for place, block in enumerate(self.blocks):
            x = block(x, others[place % 2])
        return x.sum()


def test_units_that_are_given_something_else_are_not_left_out():
    """A unit is like the one before it only if both are given the same beside the result of the one before."""
    torch.manual_seed(0)
    assert detect(Mixed(), (torch.randn(4, 16),), {}).repeated == frozenset()


def test_a_step_that_goes_another_way_is_not_taken_for_a_whole_one():
    """A segment is missing, or one that stands for others comes twice."""
    row = Row(["a", "b", "c", "d"], {"c"})
    order = [Segment("forward", unit) for unit in (0, 1, 2, 3)] + [Segment("forward", 3, is_behind=True)]
    pieces = [Piece(Segment("forward", unit), ((0, Extent(unit, unit)),)) for unit in (0, 1, 2)]
    pieces.append(Piece(Segment("forward", 2, is_behind=True), ((0, Extent(3, 3)),)))
    assert [extent.change for piece in row.whole(order, pieces) for _, extent in piece.nodes] == [0, 1, 1, 2, 3]
    for wrong in (pieces[1:], pieces[:-1], [*pieces, pieces[1]]):
        with pytest.raises(DifferentStepsError):
            row.whole(order, wrong)
