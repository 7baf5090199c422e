"""What a script sets on blocks between two calls of one step: each is made again with what it had."""

import copy
import enum
import gc
import weakref

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.checkpoints import Checkpoint
from autorecompute.backends.torch.interception import put_around
from autorecompute.backends.torch.module_tensors import SMALL

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Size(enum.Enum):
    """Of an image."""

    SMALL = 1
    LARGE = 2


class Scaled(nn.Module):
    """A number that it reads from an attribute."""

    def __init__(self):
        super().__init__()
        self.factor = 1

    def forward(self, x):
        """So many times what is given."""
        return x * self.factor


class Block(nn.Module):
    """Goes by what is set on it, wherever that is."""

    def __init__(self):
        super().__init__()
        self.linear, self.inner, self.drop = nn.Linear(4, 4), Scaled(), nn.Dropout(0)
        self.figure, self.pair, self.size, self.table, self.shape = 1, (1, 1), Size.SMALL, {"by": 1}, [1]
        self.tensor, self.large = torch.ones(4), torch.ones(SMALL)
        self.register_buffer("buffer", torch.ones(4))
        self.register_buffer("large_buffer", torch.ones(SMALL))

    def forward(self, x):
        """A product, scaled by all of them."""
        tensors = self.tensor + self.buffer + self.large[:4] + self.large_buffer[:4]
        numbers = self.figure + self.pair[1] + self.size.value + self.table["by"] + self.shape[0]
        return torch.sin(self.drop(self.inner(self.linear(x))) * tensors * numbers)


def gradients(block, *settings, checkpointed):
    """Those of a step with a call for each setting, and one backward pass."""
    block = copy.deepcopy(block)
    if checkpointed:
        put_around(block, [Checkpoint(block)])
    torch.manual_seed(0)
    found = []
    for _ in range(3):
        losses = []
        for value, setting in enumerate(settings, 1):
            setting(block, value)
            losses.append(block(X).sum())
        sum(losses).backward()
        found.append(block.linear.weight.grad.clone())
    return found


SETTINGS = {
    "a figure": lambda block, value: setattr(block, "figure", value),
    "a tuple": lambda block, value: setattr(block, "pair", (0, value)),
    "an enum": lambda block, value: setattr(block, "size", Size(value)),
    "an entry of a dictionary": lambda block, value: block.table.update(by=value),
    "a list": lambda block, value: setattr(block, "shape", [value]),
    "a figure of an inner module": lambda block, value: setattr(block.inner, "factor", value),
    "a figure of one of PyTorch's modules": lambda block, value: setattr(block.drop, "p", value / 4),
    "a tensor": lambda block, value: setattr(block, "tensor", torch.full((4,), float(value))),
    "a tensor in place": lambda block, value: block.tensor.fill_(value),
    "a buffer": lambda block, value: setattr(block, "buffer", torch.full((4,), float(value))),
    "a buffer in place": lambda block, value: block.buffer.fill_(value),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_block_is_made_again_with_what_was_set_on_it_before_its_call(what):
    """Two calls before one backward pass, as with two views of an image: what the second had is not the first's."""

    class Unsaved(Block):
        """Plain training may write in place what no operator has saved."""

        def forward(self, x):
            """The same with copies of the tensors."""
            held, buffer = self.tensor, self.buffer
            self.tensor, self.buffer = held.clone(), buffer.clone()
            result = super().forward(x)
            self.tensor, self.buffer = held, buffer
            return result

    block, setting = Unsaved(), SETTINGS[what]
    expected = gradients(block, setting, setting, checkpointed=False)
    assert all(map(torch.equal, gradients(block, setting, setting, checkpointed=True), expected))


@pytest.mark.parametrize("name", ["large", "large_buffer"])
def test_a_large_tensor_that_is_set_anew_is_put_back_while_it_lives(name):
    """Nothing of ours keeps it alive: whoever needs it once more keeps it."""
    kept = [torch.full((SMALL,), float(value)) for value in range(3)]

    def setting(block, value):
        setattr(block, name, kept[value])

    block = Block()
    expected = gradients(block, setting, setting, checkpointed=False)
    assert all(map(torch.equal, gradients(block, setting, setting, checkpointed=True), expected))


@pytest.mark.parametrize("name", ["large", "large_buffer"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_large_tensor_that_is_lost_is_told_where_it_is_read(name, in_place):
    """With another one the gradients would be wrong without a word; it is not kept alive for that."""
    block = Block()
    before = weakref.ref(getattr(block, name))
    put_around(block, [Checkpoint(block)])
    loss = block(X).sum()
    if in_place:
        getattr(block, name).zero_()
    else:
        setattr(block, name, torch.zeros(SMALL))
        gc.collect()
        assert before() is None
    with pytest.raises(RuntimeError, match=f"the tensor {name} of a checkpointed module was changed between"):
        loss.backward()
    assert torch.equal(getattr(block, name), torch.zeros(SMALL))


def test_a_large_tensor_that_is_not_read_may_be_lost():
    """Hooks leave what a block gave on the block itself, and in the next call that is let go."""
    block = Scaled()
    block.linear = nn.Linear(4, 4)
    block.register_forward_hook(lambda module, _given, result: setattr(module, "given", result.expand(SMALL, 2, 4)))
    put_around(block, [Checkpoint(block)])
    for _ in range(3):
        block(X.clone().requires_grad_()).sum().backward()
    assert block.given.shape == (SMALL, 2, 4)


class Averaging(nn.Module):
    """Keeps an average in a tensor that is no buffer, and a log; computes with both."""

    def __init__(self):
        super().__init__()
        self.linear, self.average, self.log = nn.Linear(4, 4), torch.ones(4), []

    def forward(self, x):
        """A product through the average."""
        self.log.append(len(self.log))
        self.average.mul_(0.5).add_(x.detach().abs().mean(0))
        return torch.tanh(self.linear(x) / (self.average.clone() + len(self.log)))


def test_a_tensor_that_a_block_writes_itself_is_written_once():
    """An average in a plain attribute is treated like one in a buffer."""
    plain = Averaging()
    ours = copy.deepcopy(plain)
    put_around(ours, [Checkpoint(ours)])
    for block in (plain, ours):
        for _ in range(3):
            (block(X).sum() + block(2 * X).sum()).backward()
    assert torch.equal(plain.linear.weight.grad, ours.linear.weight.grad)
    assert torch.equal(plain.average, ours.average)
    assert plain.log == ours.log


def test_what_a_forward_makes_once_is_made_again():
    """A table that the first call makes is not there when that call runs again, and is there afterwards."""

    class Lazy(Scaled):
        def forward(self, x):
            if not hasattr(self, "table"):
                self.table, self.factor = torch.ones(4), 3
            return torch.sin(x * self.factor * self.table)

    block, x = Lazy(), X.clone().requires_grad_()
    put_around(block, [Checkpoint(block)])
    loss = block(x).sum()
    table = block.table
    block.table, block.factor = torch.zeros(4), 5
    loss.backward()
    assert torch.equal(x.grad, torch.cos(3 * x) * 3)
    assert not torch.equal(block.table, table)
