"""How much memory the comparison of gradients takes on a real card."""

from __future__ import annotations

import pytest

from autorecompute.plans import Choice

pytestmark = pytest.mark.gpu

WIDTH, LAYERS = 2048, 16


class Board:
    """Switches nothing: it is the memory that counts."""

    is_exact = True
    choices = ()

    def set(self, choices):
        """Kept, as those of the tool are."""
        self.choices = tuple(choices)


def test_no_more_gradients_are_held_than_at_the_end_of_a_step():
    """256 MiB of gradients, and not several times as much; two gradients and doubles of a part come on top."""
    import torch

    from autorecompute.backends.torch.gradients import check_gradients

    layers = [torch.nn.Linear(WIDTH, WIDTH, device="cuda") for _ in range(LAYERS)]
    model = torch.nn.Sequential(*layers)
    gradient_bytes = sum(parameter.nbytes for parameter in model.parameters())
    x = torch.rand(2, WIDTH, device="cuda")
    torch.nn.functional.linear(x, layers[0].weight)  # cuBLAS takes its workspace
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert check_gradients(model, Board(), [Choice("*", "checkpoint")], (x,), {}).agrees
    taken = torch.cuda.max_memory_allocated() - before
    assert gradient_bytes < taken < 1.6 * gradient_bytes
