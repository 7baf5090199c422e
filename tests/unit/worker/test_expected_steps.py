import functools
import weakref

import pytest
import torch
from torch.optim import lr_scheduler

from autorecompute.worker.hooks import expected_steps, follow_schedulers


def rate(_step, *, num_training_steps):
    """As Hugging Face's schedulers are made."""
    return 1 / num_training_steps


@pytest.fixture
def expected():
    schedulers = weakref.WeakSet()
    end = follow_schedulers(schedulers)
    yield functools.partial(expected_steps, schedulers)
    end()


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def go_along(optimizer, scheduler):
    for _ in range(2):
        optimizer.step()
        scheduler.step()


def after_warm_up(scheduler):
    """A hundred steps of warm-up in front, as scripts write it."""
    optimizer = scheduler.optimizer
    return lr_scheduler.SequentialLR(
        optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=100), scheduler], milestones=[100]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=400),
        lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 400),
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, functools.partial(rate, num_training_steps=400)),
        lambda optimizer: lr_scheduler.PolynomialLR(optimizer, total_iters=400),
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=400),
        lambda optimizer: after_warm_up(lr_scheduler.CosineAnnealingLR(optimizer, 300)),
        lambda optimizer: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, 400)]
        ),
    ],
)
def test_a_scheduler_that_goes_by_steps_tells_the_length(expected, optimizer, make):
    """One that has not moved counts epochs."""
    scheduler = make(optimizer)
    assert expected(1) is None
    assert expected(3) is None
    go_along(optimizer, scheduler)
    assert expected(3) == 400


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, total_iters=10),
        lambda optimizer: lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=10),
        lambda optimizer: after_warm_up(lr_scheduler.ConstantLR(optimizer, 1.0)),
    ],
)
def test_the_end_of_a_warm_up_is_not_that_of_the_training(expected, optimizer, make):
    """The search would be given a share of the warm-up's steps."""
    go_along(optimizer, make(optimizer))
    assert expected(3) is None
