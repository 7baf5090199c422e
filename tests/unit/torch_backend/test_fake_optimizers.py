"""Fake steps beside a training: what the script's own optimizer and kernels see of them."""

import ctypes

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.tuned import Tuned


class Marking(torch.optim.AdamW):
    """Writes in itself and in its groups as it steps, as 8-bit and learning-rate-free optimizers do."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.table, self.steps = {"map": torch.ones(300)}, 0

    def step(self):
        """A step that leaves marks."""
        self.steps += 1
        self.table["map"] = self.table["map"] * self.param_groups[0]["params"][0].sum()
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        self.param_groups[0]["lr"] = 1.0
        super().step()


class ByAddress(nn.Module):
    """Moves memory by its address, as kernels of Triton do."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x):
        """What the layer gives, written once more where it is."""
        result = self.linear(x)
        ctypes.memmove(result.data_ptr(), result.data_ptr(), result.nbytes)
        return torch.relu(result)


def surveyed(model, optimizer, x):
    """What fake steps beside a training tell."""
    tuned = Tuned.of(model, (x,), {})
    return survey_steps(model, tuned.found, tuned.board, Script((x,), {}, (optimizer,)))


def make(block):
    """Four blocks, and a batch."""
    torch.manual_seed(0)
    return nn.Sequential(*(block() for _ in range(4))).train(), torch.rand(16, 32)


def linear():
    """A block that keeps something."""
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


def test_a_fake_step_leaves_no_mark_on_an_optimizer():
    """Neither in its attributes nor in its groups, nor in what lies within them."""
    model, x = make(linear)
    optimizer = Marking(model.parameters())
    table, group = optimizer.table["map"], dict(optimizer.param_groups[0])
    assert surveyed(model, optimizer, x).options
    assert optimizer.steps == 0
    assert optimizer.table["map"] is table
    assert optimizer.param_groups[0] == group
    assert not optimizer.state


def test_no_kernel_is_called_with_the_address_of_a_fake_tensor():
    """That is an error in time, and not a process that dies of it."""
    model, x = make(ByAddress)
    with pytest.raises(RuntimeError, match="data"):
        surveyed(model, torch.optim.SGD(model.parameters()), x)


def test_an_optimizers_state_is_counted_once():
    """Whether it is there already, as in a training that goes on, or will be."""
    model, x = make(linear)
    optimizer = torch.optim.AdamW(model.parameters())
    before = surveyed(model, optimizer, x).later_bytes
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    held = sum(value.nbytes for values in optimizer.state.values() for value in values.values())
    assert before >= held
    assert surveyed(model, optimizer, x).later_bytes <= before - held
