import collections
import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.modules.module import register_module_full_backward_hook

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.forecast.records import CHECKPOINT, KEEP_MATMUL
from autorecompute.backends.torch.switch.module_state import untouched
from autorecompute.plans import Choice
from stand_ins.late import drops

pytestmark = pytest.mark.usefixtures("uncompiled")

X = torch.linspace(-1, 1, 32).reshape(8, 4)
COLLECTED, SLOPES, LOSSES = [], [], []
"""What hooks and forwards of a script collect."""


def look_at(model, optimizer, site="*"):
    args = (X.clone().requires_grad_(),)  # else torch warns of the first hook
    found = detect(model, args, {})
    board = found.switchboard(model)
    survey_steps(model, found, board, Script(args, {}, [optimizer]))
    assert check_gradients(model, board, [Choice(site, CHECKPOINT)], args, {}).agrees


def train(model, *, looks=False, site="*"):
    """The losses of some steps, before one of which all that is run on the side may be run."""
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    losses = []
    for step in range(4):
        if looks and step == 1:
            look_at(model, optimizer, site)
        loss = model(X.clone().requires_grad_()).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


class Block(nn.Module):
    """Counts its calls, and scales by them; draws from a generator of its own; notes what it has seen."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls, self.seen = nn.Linear(4, 4), 0, []
        self.noise = torch.Generator().manual_seed(3)

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        noise = torch.rand(x.shape, generator=self.noise)
        return x + min(1.0, self.calls / 10) * torch.tanh(self.linear(x) * noise)


def make():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block())


def switched(model, option=CHECKPOINT):
    detect(model, (X,), {}).switchboard(model).set([Choice("*", option)])
    return model


@pytest.mark.parametrize("option", [CHECKPOINT, KEEP_MATMUL])
def test_a_block_that_counts_and_draws_trains_as_without(option):
    """Its calls are counted once a step, it draws the same noise again, and its list has one entry a call."""
    plain, model = make(), make()
    board = detect(model, (X,), {}).switchboard(model)
    assert check_gradients(model, board, [Choice("*", option)], (X,), {}).agrees
    board.set([Choice("*", option)])
    assert train(model) == train(plain)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
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


class Logged(nn.Module):
    def forward(self, x):
        x = x * 1
        x.register_hook(lambda slope: SLOPES.append(slope.sum().item()))
        return x


def test_what_is_tried_leaves_no_trace():
    """Counters, lists, and generators of PyTorch, Python and NumPy are as before; so are lists that hooks fill."""
    model = make()
    model.python, model.numpy, model.kept = random.Random(1), np.random.default_rng(1), {"deep": [1]}
    model[1].register_forward_hook(lambda _module, _given, result: COLLECTED.append(result))
    before = copy.deepcopy((model[0].noise.get_state(), model.python.getstate(), model.numpy.bit_generator.state))
    model.append(Logged())
    with untouched(model):
        model(X).sum().backward()
        model.python.random()
        model.numpy.random()
        model.kept["deep"].append(2)
    assert (model[0].calls, model[0].seen, model.kept, COLLECTED, SLOPES) == (0, [], {"deep": [1]}, [], [])
    assert torch.equal(model[0].noise.get_state(), before[0])
    assert (model.python.getstate(), model.numpy.bit_generator.state) == before[1:]


class Expert(nn.Sequential):
    def forward(self, x):
        LOSSES.append(x.square().mean())
        return torch.tanh(super().forward(x))


def test_a_list_of_the_script_has_an_entry_a_call():
    """Neither the comparison of gradients nor a block that runs again leaves another, where blocks are intercepted."""
    model = nn.Sequential(Expert(nn.Linear(4, 4)), Expert(nn.Linear(4, 4)))
    board = detect(model, (X,), {}).switchboard(model)
    assert check_gradients(model, board, [Choice("*", CHECKPOINT)], (X,), {}).agrees
    assert LOSSES == []
    board.set([Choice("*", CHECKPOINT)])
    (model(X).sum() + sum(LOSSES)).backward()
    assert len(LOSSES) == 2
    LOSSES.clear()


def two_blocks():
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


def seen_by_hook(kind, *, looks):
    model, seen = two_blocks(), []
    handle = HOOKS[kind](model, lambda gradient: seen.append(gradient.clone()))
    try:
        train(model, looks=looks)
    finally:
        handle.remove()
    return seen


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_sees_the_gradients_of_the_training_alone(kind):
    expected, found = seen_by_hook(kind, looks=False), seen_by_hook(kind, looks=True)
    assert len(found) == len(expected) >= 4
    assert all(map(torch.equal, found, expected))


def test_a_hook_that_is_taken_away_is_gone_and_the_nodes_of_one_are_in_the_graph_that_is_looked_at():
    """They are in that of a step, too: operators of another graph would be kept there."""
    model, seen = two_blocks(), collections.Counter()
    handles = [model[0][0].weight.register_hook(lambda _slope, name=name: seen.update([name])) for name in "ab"]
    look_at(model, torch.optim.SGD(model.parameters(), lr=0.1))
    handles[0].remove()
    model(X).sum().backward()
    assert seen == {"b": 1}
    model = two_blocks()
    assert "BackwardHookFunction" not in str(detect(model, (X,), {}).operators)
    model[1][1].register_full_backward_hook(lambda *_given: None)
    assert "BackwardHookFunction" in str(detect(model, (X,), {}).operators)


def replace_data(model):
    """As MoCo moves its encoder of keys."""
    for own, other in zip(model.slow.parameters(), model.blocks.parameters(), strict=True):
        own.data = 0.9 * own.data + 0.1 * other.data


def write_data(model):
    """As others write the same: torch counts no version of it."""
    for own, other in zip(model.slow.parameters(), model.blocks.parameters(), strict=True):
        own.data.mul_(0.9).add_(other.data, alpha=0.1)


def write_at_once(model):
    torch._foreach_lerp_(list(model.slow.parameters()), list(model.blocks.parameters()), 0.1)


def replace_parameter(model):
    """As a codebook is moved."""
    for block in model.slow:
        block[0].weight = nn.Parameter(0.9 * block[0].weight + 0.1, requires_grad=False)


def write_attributes(model):
    model.mean.mul_(0.9).add_(model.blocks[0][0].bias.detach())
    model.means[0].mul_(0.9)


WRITE = [replace_data, write_data, write_at_once, replace_parameter, write_attributes]


class Momentum(nn.Module):
    """Learns what a slower copy of it gives, and moves that in its forward, with means that are no buffers."""

    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2)))
        self.slow = copy.deepcopy(self.blocks).requires_grad_(False)
        self.mean, self.means, self.write = torch.ones(4), [torch.ones(4)], write

    def forward(self, x):
        given = self.blocks(x)
        with torch.no_grad():
            self.write(self)
            wanted = self.slow(x) + self.mean + self.means[0]
        return given - wanted


@pytest.mark.parametrize("write", WRITE)
def test_weights_that_a_forward_writes_are_moved_once_a_step(write):
    left = []
    for looks in (True, False):
        train(model := Momentum(write), looks=looks, site="blocks.*")
        left.append([*model.state_dict().values(), model.mean, *model.means])
    assert all(map(torch.equal, *left))


@pytest.mark.parametrize("write", WRITE)
def test_weights_are_the_same_objects_on_the_same_numbers(write):
    """An optimizer or a module that shares them holds them still."""
    model = Momentum(write)
    before = [(one, one.data_ptr(), one.clone()) for one in (*model.parameters(), model.mean, *model.means)]
    with untouched(model):
        model(X).sum().backward()
    after = [*model.parameters(), model.mean, *model.means]
    assert all(one is other for one, (other, _, _) in zip(after, before, strict=True))
    assert all(one.data_ptr() == place for one, place, _ in before)
    assert all(torch.equal(one, value) for one, _, value in before)


def test_a_graph_of_before_finds_what_it_has_saved():
    model, x = Momentum(write_at_once), X.clone().requires_grad_()
    result = model.slow(x).sum()
    with untouched(model):
        model(X)
    result.backward()
    assert x.grad is not None


class Noting(nn.Sequential):
    """A block that notes means of what it is given, too many to be copied in each call, and does not read them."""

    def __init__(self):
        super().__init__(nn.Linear(4, 16), nn.GELU(), nn.Linear(16, 4))
        self.mean = torch.zeros(2**15)

    def forward(self, x):
        self.mean.mul_(0.9).add_(x.detach().mean())
        return super().forward(x)


def test_a_block_that_would_move_a_weight_twice_is_refused():
    """No gradient tells that it does."""
    model = nn.Sequential(Noting(), Noting())
    found = detect(model, (X,), {})
    board = found.switchboard(model)
    check = check_gradients(model, board, [Choice("*", CHECKPOINT)], (X,), {})
    assert not check.agrees
    assert check.parameter.endswith(".mean")
    assert drops(found)
    assert check_gradients(model, board, drops(found), (X,), {}).agrees
