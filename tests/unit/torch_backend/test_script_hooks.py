"""Hooks of a script on gradients: they see those of the training, and nothing of what is tried on the side."""

import collections

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_full_backward_hook

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.options import CHECKPOINT
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.plans import Choice

pytestmark = pytest.mark.usefixtures("uncompiled")

X = torch.linspace(-1, 1, 32).reshape(8, 4)


def make():
    """Two blocks."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4)) for _ in range(2)))


HOOKS = {
    "full": lambda model, see: model[1].register_full_backward_hook(lambda _module, _given, got: see(got[0])),
    "inner": lambda model, see: model[1][1].register_full_backward_hook(lambda _module, _given, got: see(got[0])),
    "old": lambda model, see: model[1][1].register_backward_hook(lambda _module, _given, got: see(got[0])),
    "before": lambda model, see: model[1].register_full_backward_pre_hook(lambda _module, got: see(got[0])),
    "weight": lambda model, see: model[1][0].weight.register_hook(see),
    "through": lambda model, see: model[1][0].weight.register_post_accumulate_grad_hook(lambda one: see(one.grad)),
    "everywhere": lambda _model, see: register_module_full_backward_hook(lambda _module, _given, got: see(got[0])),
}


def train(kind, *, looks):
    """What a hook saw in some steps, before which all that is run on the side may be run."""
    model, seen = make(), []
    handle = HOOKS[kind](model, lambda gradient: seen.append(gradient.clone()))
    try:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            if looks and step == 0:
                look_at(model, optimizer)
            model(X.clone().requires_grad_()).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        handle.remove()
    return seen


def look_at(model, optimizer):
    """A probe, fake steps and a check, which agrees."""
    args = (X.clone().requires_grad_(),)  # else torch warns of the first hook
    found = detect(model, args, {})
    board = found.switchboard(model)
    survey_steps(model, found, board, Script(args, {}, [optimizer]))
    assert check_gradients(model, board, [Choice("*", CHECKPOINT)], args, {}).agrees


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_sees_the_gradients_of_the_training_alone(kind):
    """As many, and the same; none of them a fake."""
    expected, found = train(kind, looks=False), train(kind, looks=True)
    assert len(found) == len(expected) >= 2
    assert all(map(torch.equal, found, expected))


def test_a_hook_that_is_taken_away_afterwards_is_gone():
    """Its handle still knows where it is; and the order of several is as it was."""
    model, seen = make(), collections.Counter()
    handles = [model[0][0].weight.register_hook(lambda _slope, name=name: seen.update([name])) for name in "ab"]
    look_at(model, torch.optim.SGD(model.parameters(), lr=0.1))
    handles[0].remove()
    model(X).sum().backward()
    assert seen == {"b": 1}


def test_the_nodes_of_a_hook_are_in_the_graph_that_is_looked_at():
    """They are in that of a step, too: operators of another graph would be kept there."""
    model = make()
    assert "BackwardHookFunction" not in str(detect(model, (X,), {}).operators)
    model[1][1].register_full_backward_hook(lambda *_given: None)
    assert "BackwardHookFunction" in str(detect(model, (X,), {}).operators)
