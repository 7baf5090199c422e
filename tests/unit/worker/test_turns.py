import dataclasses

import pytest

from autorecompute.worker.agent import PATIENCE
from stand_ins.training import FIRST, TARGET, Optimizer


class Turns:
    """A training whose optimizers step one by one."""

    def __init__(self, training):
        self.training, self.agent = training, training.agent

    def end_with(self, optimizer, *, is_forward_open):
        self.training.has_open_forward, before = is_forward_open, self.agent.steps
        self.agent.on_forward(TARGET, self.training.check)
        self.agent.on_step(optimizer)
        return self.agent.steps > before


@pytest.fixture
def turns(make_training):
    training = make_training(orders=[dataclasses.replace(FIRST, steps=99)])
    training.agent.on_session(lambda: training.detection)
    return Turns(training)


def test_no_step_ends_while_a_forward_waits_for_its_backward(turns):
    """Only then a session can be rebuilt."""
    discriminator, generator = Optimizer(), Optimizer()
    for _ in range(5):
        assert not turns.end_with(discriminator, is_forward_open=True)
        assert turns.end_with(generator, is_forward_open=False)


def test_an_optimizer_that_is_dropped_is_followed_by_the_next(turns):
    """A script that makes a new optimizer for each phase has every step of it counted."""
    assert turns.end_with(Optimizer(), is_forward_open=False)
    assert turns.end_with(Optimizer(), is_forward_open=False)


def test_an_optimizer_that_stops_is_followed_by_another(turns):
    old, new = Optimizer(), Optimizer()
    turns.end_with(old, is_forward_open=False)
    ended = [turns.end_with(new, is_forward_open=False) for _ in range(PATIENCE + 3)]
    assert ended == [False] * PATIENCE + [True] * 3


def test_a_forward_that_never_has_a_backward_holds_nothing_up(turns):
    only = Optimizer()
    ended = [turns.end_with(only, is_forward_open=True) for _ in range(PATIENCE + 3)]
    assert ended == [False] * PATIENCE + [True] * 3
