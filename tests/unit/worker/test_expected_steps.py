"""How long a training is, by torch's own schedulers."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler, OneCycleLR

from autorecompute.worker.expected_steps import ExpectedSteps


def rate(_step, *, num_training_steps):
    """As Hugging Face's schedulers are made."""
    return 1 / num_training_steps


@pytest.fixture
def expected(monkeypatch):
    """Follows the schedulers of this test."""
    monkeypatch.setattr(LRScheduler, "__init__", LRScheduler.__init__)
    expected = ExpectedSteps()
    expected.follow()
    return expected


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=400),
        lambda optimizer: CosineAnnealingLR(optimizer, 400),
        lambda optimizer: LambdaLR(optimizer, functools.partial(rate, num_training_steps=400)),
    ],
)
def test_a_scheduler_that_goes_by_steps_tells_the_length(expected, make):
    """Known once it has gone along; not so of one that has not moved, which counts epochs."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = make(optimizer)
    assert expected.after(1) is None
    assert expected.after(3) is None
    for _ in range(2):
        optimizer.step()
        scheduler.step()
    assert expected.after(3) == 400
