"""Models whose forward writes weights: what is run on the side moves none of them."""

import copy

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.options import CHECKPOINT, DROP
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.untouched import untouched
from autorecompute.plans import Choice

pytestmark = pytest.mark.usefixtures("uncompiled")

X = torch.linspace(-1, 1, 32).reshape(8, 4)


def replace_data(model):
    """As MoCo moves its encoder of keys."""
    for own, other in zip(model.slow.parameters(), model.blocks.parameters(), strict=True):
        own.data = 0.9 * own.data + 0.1 * other.data


def write_data(model):
    """As others write the same: torch counts no version of it."""
    for own, other in zip(model.slow.parameters(), model.blocks.parameters(), strict=True):
        own.data.mul_(0.9).add_(other.data, alpha=0.1)


def write_at_once(model):
    """With one operator for all of them."""
    torch._foreach_lerp_(list(model.slow.parameters()), list(model.blocks.parameters()), 0.1)


def replace_parameter(model):
    """As a codebook is moved."""
    for block in model.slow:
        block[0].weight = nn.Parameter(0.9 * block[0].weight + 0.1, requires_grad=False)


def write_attributes(model):
    """Means that are no buffers."""
    model.mean.mul_(0.9).add_(model.blocks[0][0].bias.detach())
    model.means[0].mul_(0.9)


WRITE = [replace_data, write_data, write_at_once, replace_parameter, write_attributes]


class Momentum(nn.Module):
    """Learns what a slower copy of it gives, and moves that in its forward."""

    def __init__(self, write):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.GELU()) for _ in range(2)))
        self.slow = copy.deepcopy(self.blocks).requires_grad_(False)
        self.mean, self.means, self.write = torch.ones(4), [torch.ones(4)], write

    def forward(self, x):
        """A loss."""
        given = self.blocks(x)
        with torch.no_grad():
            self.write(self)
            wanted = self.slow(x) + self.mean + self.means[0]
        return (given - wanted).square().sum()


def look_at(model, optimizer):
    """A probe, fake steps and a check, which agrees."""
    found = detect(model, (X,), {})
    board = found.switchboard(model)
    survey_steps(model, found, board, Script((X,), {}, [optimizer]))
    assert check_gradients(model, board, [Choice("blocks.*", CHECKPOINT)], (X,), {}).agrees


def train(write, *, looks):
    """All that is left of some steps, before one of which all that is run on the side may be run."""
    model = Momentum(write)
    optimizer = torch.optim.SGD(model.blocks.parameters(), lr=0.1)
    for step in range(3):
        if looks and step == 1:
            look_at(model, optimizer)
        model(X).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*model.state_dict().values(), model.mean, *model.means]


@pytest.mark.parametrize("write", WRITE)
def test_weights_that_a_forward_writes_are_moved_once_a_step(write):
    """A training ends with the same bits as without."""
    assert all(map(torch.equal, train(write, looks=True), train(write, looks=False)))


@pytest.mark.parametrize("write", WRITE)
def test_weights_are_the_same_objects_on_the_same_numbers(write):
    """An optimizer or a module that shares them holds them still."""
    model = Momentum(write)
    before = [(one, one.data_ptr(), one.clone()) for one in (*model.parameters(), model.mean, *model.means)]
    with untouched(model):
        model(X).backward()
    after = [*model.parameters(), model.mean, *model.means]
    assert all(one is other for one, (other, _, _) in zip(after, before, strict=True))
    assert all(one.data_ptr() == place for one, place, _ in before)
    assert all(torch.equal(one, value) for one, _, value in before)


def test_a_graph_of_before_finds_what_it_has_saved():
    """The numbers are the same, and torch takes them to be."""
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
        """What comes of it."""
        self.mean.mul_(0.9).add_(x.detach().mean())
        return super().forward(x)


def test_a_block_that_would_move_a_weight_twice_is_refused():
    """No gradient tells that it does."""
    model = nn.Sequential(Noting(), Noting())
    board = detect(model, (X,), {}).switchboard(model)
    drops = [Choice(name, DROP) for name, site in board.sites.items() if DROP in site.options]
    check = check_gradients(model, board, [Choice("*", CHECKPOINT)], (X,), {})
    assert not check.agrees
    assert check.parameter.endswith(".mean")
    assert drops
    assert check_gradients(model, board, drops, (X,), {}).agrees
