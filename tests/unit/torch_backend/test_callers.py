"""What the code that calls a model does with its result."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.callers import keeps_result

ONES = torch.ones(2, requires_grad=True)


class Told(nn.Module):
    """Notes whether its caller keeps what it returns."""

    def forward(self, x):
        """The input as two results, and as a named one."""
        frame = sys._getframe()
        while frame.f_code not in CALLERS:
            frame = frame.f_back
        self.is_kept = keeps_result(frame)
        return Result((x, x))


class Result(tuple):
    """Two tensors, which have a loss and scores as transformers' results do."""

    __slots__ = ()
    loss = scores = ONES


def give_on(model):
    """As ``criterion(model(x), y)`` does."""
    sum(model(ONES)).sum().backward()


def give_back(model):
    """A function that trainers call; the name goes with it."""
    result = model(ONES)
    return sum(result)


def take_loss(model):
    """Nothing else of the result is kept."""
    loss = model(ONES).loss
    loss.sum().backward()


def take_scores(model):
    """All that the loss is made of is kept."""
    scores = model(ONES).scores
    scores.sum().backward()


def take_apart(model):
    """Both parts have a name."""
    _first, second = model(ONES)
    second.sum().backward()


def keep(model):
    """The usual loop."""
    result = model(ONES)
    result.loss.sum().backward()


KEPT = {give_on: False, give_back: False, take_loss: False, take_scores: True, take_apart: True, keep: True}
CALLERS = {call.__code__ for call in KEPT}


@pytest.mark.parametrize(("call", "is_kept"), KEPT.items())
def test_a_result_is_kept_where_it_has_a_name_as_its_backward_pass_runs(call, is_kept):
    """A name in a function that calls ``backward`` outlives the loss; a loss alone holds nothing else."""
    model = Told()
    call(model)
    assert model.is_kept is is_kept
