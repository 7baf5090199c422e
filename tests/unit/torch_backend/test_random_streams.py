"""Random numbers that blocks draw in Python, and generators and modules that a script puts in the place of others."""

import copy
import random
from random import random as draw

import numpy as np
import pytest
import torch
from torch import nn

from autorecompute.backends.torch.checkpoints import Checkpoint
from autorecompute.backends.torch.interception import put_around
from autorecompute.backends.torch.random_streams import streams_in

X = torch.linspace(-1, 1, 8).reshape(2, 4)
GENERATOR = None


def drawn():
    """A function of the script's, which draws."""
    return random.random()


def passed_on():
    """A function that calls another one."""
    return drawn()


class Block(nn.Module):
    """Scales what it makes by a random number."""

    def __init__(self):
        super().__init__()
        self.linear, self.noise, self.seen = nn.Linear(4, 4), None, nn.Identity()

    def forward(self, x):
        """A product."""
        return torch.sin(self.seen(self.linear(x)) * (1 + self.factor()))

    def factor(self):
        """Of a generator that is set on it."""
        return torch.rand((), generator=self.noise)


class Python(Block):
    """Draws with Python's module."""

    def factor(self):
        """Any number."""
        return random.random()


class Numpy(Block):
    """Draws with NumPy's module."""

    def factor(self):
        """Any number."""
        return float(np.random.rand())  # noqa: NPY002


class Imported(Block):
    """Draws with a function of Python's module."""

    def factor(self):
        """Any number."""
        return draw()


class Inside(Block):
    """Imports the module where it draws."""

    def factor(self):
        """Any number."""
        import numpy  # noqa: ICN001

        return float(numpy.random.rand())  # noqa: NPY002


class PassedOn(Block):
    """Draws in a function that another one calls."""

    def factor(self):
        """Any number."""
        return passed_on()


class Hooked(Block):
    """A hook of a part draws."""

    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda _module, _given, result: result * random.random())


class Global(Block):
    """Draws from a generator that is a global of the script."""

    def forward(self, x):
        """A product."""
        return torch.sin(self.linear(x) * (1 + torch.rand((), generator=GENERATOR)))


def train(block, before_epoch=lambda _block, _epoch: None, *, checkpointed):
    """Gradients of some steps, what the block holds, and where the random numbers are."""
    block = copy.deepcopy(block)
    if checkpointed:
        put_around(block, [Checkpoint(block)])
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    found = []
    for epoch in range(3):
        before_epoch(block, epoch)
        for _ in range(2):
            (block(X).sum() + block(2 * X).sum()).backward()
            found.append(block.linear.weight.grad.clone())
    state = [value.clone() for value in block.state_dict().values()]
    return [*found, *state, torch.tensor([random.random(), Numpy().factor()]), torch.rand(1)]


@pytest.mark.parametrize("kind", [Python, Numpy, Imported, Inside, PassedOn, Hooked])
def test_a_block_draws_the_same_numbers_of_python_again(kind):
    """And those that come after are what they would be: a recompute draws none of them."""
    block = kind()
    expected = train(block, checkpointed=False)
    assert all(map(torch.equal, train(block, checkpointed=True), expected))


def test_states_are_read_where_a_forward_draws_alone():
    """Reading one takes longer than all else: a block that draws nothing, or names NumPy alone, has none."""

    class Root(Block):
        def factor(self):
            return float(np.sqrt(2))

    def streams(kind):
        return streams_in([(kind.forward, kind)])

    assert streams(Block) == streams(Root) == []
    assert streams(Python) == [random]
    assert np.random in streams(Numpy)


def test_numbers_of_the_system_have_no_state():
    """Nobody can draw them again; a block that has such a generator runs all the same."""

    def setting(block, _epoch):
        block.system = random.SystemRandom()

    block = Block()
    expected = train(block, setting, checkpointed=False)
    assert all(map(torch.equal, train(block, setting, checkpointed=True), expected))


def set_noise(block, epoch):
    """As where each epoch has a generator of its own."""
    block.noise = torch.Generator().manual_seed(epoch)


def set_global(_block, epoch):
    """The same in the script."""
    globals()["GENERATOR"] = torch.Generator().manual_seed(epoch)


@pytest.mark.parametrize(("kind", "setting"), [(Block, set_noise), (Global, set_global)])
def test_a_generator_of_a_later_epoch_is_put_back(kind, setting):
    """With that of the first call alone all later masks would be others."""
    block = kind()
    expected = train(block, setting, checkpointed=False)
    assert all(map(torch.equal, train(block, setting, checkpointed=True), expected))


def set_norm(block, epoch):
    """As where a part is exchanged while the model is trained."""
    if epoch == 1:
        block.linear = nn.Sequential(nn.BatchNorm1d(4), block.linear)
        block.linear.weight = block.linear[1].weight


def test_statistics_of_a_part_that_came_later_are_written_once():
    """A norm that is put in after the first call is treated as if it had been there."""
    block = Block()
    expected = train(block, set_norm, checkpointed=False)
    assert all(map(torch.equal, train(block, set_norm, checkpointed=True), expected))
