"""How far gradients of two runs are apart."""

from __future__ import annotations

import math

import pytest
import torch

from autorecompute.backends.common.gradients import relative_difference

ONE = torch.tensor([1.0, -4.0])


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (ONE, ONE.clone(), 0.0),
        (ONE, torch.tensor([1.0, -3.0]), 0.25),
        (torch.tensor([4.0 + 0j]), torch.tensor([4.0 + 1j]), 0.25),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (ONE.to_sparse(), torch.tensor([1.0, -3.0]).to_sparse(), 0.25),
        (None, None, 0.0),
        (ONE, None, math.inf),
        (torch.zeros(2), ONE, math.inf),
        (ONE, torch.tensor([1.0, math.nan]), math.inf),
    ],
)
def test_a_difference_is_told_beside_the_largest_entry(expected, found, apart):
    """An imaginary part and a flag count as well, and what is no number or not there is infinitely far off."""
    assert relative_difference(expected, found) == apart


def test_a_difference_is_not_rounded_away():
    """Halves that differ in their last bit are told apart, where their own type would round the share."""
    expected, found = torch.tensor([1.0, 2048.0]).half(), torch.tensor([1.0, 2046.0]).half()
    assert relative_difference(expected, found) == 2 / 2048
