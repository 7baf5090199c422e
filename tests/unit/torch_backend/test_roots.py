"""Training calls are followed, and what scripts do to torch meanwhile is theirs."""

import functools

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.roots import Roots


class Watcher:
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def about_to_run(self, root, _args, _kwargs):
        """A root is called."""
        self.told.append(root)

    def has_run(self, root, _result):
        """Nothing."""


class Failing(nn.Linear):
    """Raises in every call."""

    def forward(self, _x):
        """Nothing comes of it."""
        raise ValueError("sample 17")


@pytest.fixture
def roots(monkeypatch):
    """Roots that are followed until the test ends, with a watcher; torch is as it was after that."""
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(torch.optim.Optimizer, "add_param_group", torch.optim.Optimizer.add_param_group)
    return Roots(Watcher())


def test_what_a_script_puts_around_calls_outlasts_the_tool(roots, monkeypatch):
    """Its own function goes on, and nobody is told of calls any more."""
    roots.install()
    model, called = nn.Linear(2, 2), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = nn.Module.__call__

    @functools.wraps(before)
    def call(module, *args):
        called.append(module)
        return before(module, *args)

    monkeypatch.setattr(nn.Module, "__call__", call)
    model(torch.ones(1, 2))
    roots.uninstall()
    model(torch.ones(1, 2))
    assert called == [model, model]
    assert roots._watcher.told == [model]
    assert optimizer  # as long as it lives, its model is followed


def test_nothing_is_left_where_nothing_was_put_since(roots):
    """A step costs what it always cost."""
    before = nn.Module.__call__, torch.optim.Optimizer.add_param_group
    roots.install()
    roots.uninstall()
    assert (nn.Module.__call__, torch.optim.Optimizer.add_param_group) == before


def test_what_a_training_call_raises_is_told_before_the_script_gets_it(roots):
    """The script may catch it and go on."""
    raised = []
    roots.install(raised.append)
    model = Failing(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="sample 17") as caught:
        model(torch.ones(1, 2))
    roots.uninstall()
    assert raised == [caught.value]
    assert optimizer  # as long as it lives, its model is followed
