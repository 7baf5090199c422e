"""State that a script keeps in Python: a forward that is run again, or tried, changes nothing of it."""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.options import CHECKPOINT, KEEP_MATMUL
from autorecompute.backends.torch.untouched import untouched
from autorecompute.plans import Choice

X = torch.linspace(-1, 1, 32).reshape(8, 4)
COLLECTED, SLOPES, LOSSES = [], [], []
"""What hooks and forwards of a script collect."""


class Logged(nn.Module):
    """Notes the slopes of what it gives, in the backward pass."""

    def forward(self, x):
        """Itself."""
        x = x * 1
        x.register_hook(lambda slope: SLOPES.append(slope.sum().item()))
        return x


class Block(nn.Module):
    """Counts its calls, and scales by them; draws from a generator of its own; notes what it has seen."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.seen = nn.Linear(4, 4), 0, []
        self.noise = torch.Generator().manual_seed(3)

    def forward(self, x):
        """More of the product with each call."""
        self.calls += 1
        self.seen.append(self.calls)
        noise = torch.rand(x.shape, generator=self.noise)
        return x + min(1.0, self.calls / 10) * torch.tanh(self.linear(x) * noise)


class Expert(nn.Module):
    """Notes a loss of its own in a list of the script's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        """A product."""
        LOSSES.append(x.square().mean())
        return torch.tanh(self.linear(x))


def make():
    """Two blocks."""
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def switched(model, option=CHECKPOINT):
    """The model with all its blocks recomputed."""
    board = detect(model, (X,), {}).switchboard(model)
    board.set([Choice("*", option)])
    return model


def train(model, steps=4):
    """The losses of some steps, and the weights after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = model(X).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("option", [CHECKPOINT, KEEP_MATMUL])
def test_a_block_that_counts_and_draws_trains_as_without(option):
    """Its calls are counted once a step, it draws the same noise again, and its list has one entry a call."""
    plain, model = make(), switched(make(), option)
    losses, weights = train(plain)
    assert train(model)[0] == losses
    assert all(map(torch.equal, model.parameters(), weights))
    assert [block.calls for block in model] == [4, 4]
    assert model[0].seen == [1, 2, 3, 4]
    assert torch.equal(model[1].noise.get_state(), plain[1].noise.get_state())


def test_a_block_runs_again_with_the_parameters_of_its_call():
    """``functional_call`` sets others for one call, and the backward pass comes after it."""
    model = make()
    given = {name: (2 * value.detach()).requires_grad_() for name, value in model.named_parameters()}

    def gradients(model):
        for block in model:
            block.calls = 0
            block.noise.manual_seed(3)
        loss = functional_call(model, given, (X,)).square().sum()
        return torch.autograd.grad(loss, list(given.values()))

    expected = gradients(model)
    assert all(map(torch.equal, gradients(switched(model)), expected))


def test_a_kept_graph_is_gone_through_again_with_products_kept():
    """What was kept is used up by the first backward pass; the second one computes it."""
    model = switched(make(), KEEP_MATMUL)
    loss = model(X).square().sum()
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    assert all(map(torch.equal, torch.autograd.grad(loss, list(model.parameters())), first))


def test_what_is_tried_leaves_no_trace():
    """Counters, lists, and generators of PyTorch, Python and NumPy are as before; so are lists that hooks fill."""
    model = make()
    model.python, model.numpy = random.Random(1), np.random.default_rng(1)
    model.kept = {"deep": [1]}
    model[1].register_forward_hook(lambda _module, _given, result: COLLECTED.append(result))
    before = copy.deepcopy((model[0].noise.get_state(), model.python.getstate(), model.numpy.bit_generator.state))
    model.append(Logged())
    with untouched(model):
        model(X).sum().backward()
        model.python.random()
        model.numpy.random()
        model.kept["deep"].append(2)
    assert (model[0].calls, model[0].seen, model.kept, COLLECTED, SLOPES) == (
        0,
        [],
        {"deep": [1]},
        [],
        [],
    )
    assert torch.equal(model[0].noise.get_state(), before[0])
    assert (model.python.getstate(), model.numpy.bit_generator.state) == before[1:]


def test_a_list_of_the_script_has_an_entry_a_call():
    """Neither the comparison of gradients nor a block that runs again leaves another, where blocks are intercepted."""
    model = nn.Sequential(Expert(), Expert())
    board = detect(model, (X,), {}).switchboard(model)
    assert check_gradients(model, board, [Choice("*", CHECKPOINT)], (X,), {}).agrees
    assert LOSSES == []
    board.set([Choice("*", CHECKPOINT)])
    (model(X).sum() + sum(LOSSES)).backward()
    assert len(LOSSES) == 2
    LOSSES.clear()


def test_a_block_that_draws_agrees_with_itself():
    """Gradients are compared from the same state of its generator."""
    model = make()
    board = detect(model, (X,), {}).switchboard(model)
    check = check_gradients(model, board, [Choice("*", CHECKPOINT)], (X,), {})
    assert check.agrees
    assert model[0].calls == 0
