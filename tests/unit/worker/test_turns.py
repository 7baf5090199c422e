import pytest

from autorecompute.worker.agent import PATIENCE, Turns
from stand_ins.training import Optimizer


@pytest.fixture
def turns():
    return Turns()


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
