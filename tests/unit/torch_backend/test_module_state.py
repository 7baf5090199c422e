import collections
import copy
import dataclasses
import enum
import gc
import random
import weakref
from random import random as draw
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.switch import checkpoints
from autorecompute.backends.torch.switch.checkpoints import Checkpoint, checkpointed
from autorecompute.backends.torch.switch.intercepting import put_around
from autorecompute.backends.torch.switch.module_state import SMALL
from autorecompute.backends.torch.switch.script_state import streams_in
from stand_ins.watched import watched

X = torch.linspace(-1, 1, 8).reshape(2, 4)
GENERATOR = None


def unchanged(_block, _number):
    pass


def train(block, *, is_checkpointed, before_epoch=unchanged, before_call=unchanged):
    """Gradients of steps with two calls each, what the block holds then, and the random numbers that come next."""
    block = copy.deepcopy(block)
    if is_checkpointed:
        put_around(block, [Checkpoint(block, watched())])
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    found = []
    for epoch in range(3):
        before_epoch(block, epoch)
        losses = []
        for value in (1, 2):
            before_call(block, value)
            losses.append(block(value * X).sum())
        sum(losses).backward()
        found.append(block.linear.weight.grad.clone())
    state = [value.clone() for value in block.state_dict().values()]
    state += [getattr(block, "average", X), torch.tensor(getattr(block, "log", []))]
    return [*found, *state, torch.tensor([random.random(), np.random.rand()]), torch.rand(1)]  # noqa: NPY002


def assert_same(block, **before):
    expected = train(block, is_checkpointed=False, **before)
    assert all(map(torch.equal, train(block, is_checkpointed=True, **before), expected))


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = 1

    def forward(self, x):
        return x * self.factor


class Block(nn.Module):
    """Writes an average and a log itself, which are to be written once."""

    def __init__(self):
        super().__init__()
        self.linear, self.inner, self.drop = nn.Linear(4, 4), Scaled(), nn.Dropout(0)
        self.figure, self.pair, self.size, self.table, self.shape = 1, (1, 1), Size.SMALL, {"by": 1}, [1]
        self.tensor, self.large = torch.ones(4), torch.ones(SMALL)
        self.average, self.log = torch.ones(4), []
        self.register_buffer("buffer", torch.ones(4))
        self.register_buffer("large_buffer", torch.ones(SMALL))

    def forward(self, x):
        self.log.append(len(self.log))
        self.average.mul_(0.5).add_(x.detach().abs().mean(0))
        tensors = self.tensor + self.buffer + self.large[:4] + self.large_buffer[:4] + self.average + len(self.log)
        numbers = self.figure + self.pair[1] + self.size.value + self.table["by"] + self.shape[0]
        return torch.sin(self.drop(self.inner(self.linear(x))) * tensors * numbers)


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
    assert_same(Block(), before_call=SETTINGS[what])


@pytest.mark.parametrize("name", ["large", "large_buffer"])
def test_a_large_tensor_that_is_set_anew_is_put_back_while_somebody_keeps_it(name):
    kept = [torch.full((SMALL,), float(value)) for value in range(3)]
    assert_same(Block(), before_call=lambda block, value: setattr(block, name, kept[value]))


@pytest.mark.parametrize("name", ["large", "large_buffer"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_large_tensor_that_is_lost_is_told_where_it_is_read(name, in_place):
    """With another one the gradients would be wrong without a word; it is not kept alive for that."""
    block = Block()
    before = weakref.ref(getattr(block, name))
    put_around(block, [Checkpoint(block, watched())])
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
    put_around(block, [Checkpoint(block, watched())])
    for _ in range(3):
        block(X.clone().requires_grad_()).sum().backward()
    assert block.given.shape == (SMALL, 2, 4)


def test_what_a_forward_makes_once_is_made_again():
    """A table that the first call makes is not there when that call runs again, and is there afterwards."""

    class Lazy(Scaled):
        def forward(self, x):
            if not hasattr(self, "table"):
                self.table, self.factor = torch.ones(4), 3
            return torch.sin(x * self.factor * self.table)

    block, x = Lazy(), X.clone().requires_grad_()
    put_around(block, [Checkpoint(block, watched())])
    loss = block(x).sum()
    table = block.table
    block.table, block.factor = torch.zeros(4), 5
    loss.backward()
    assert torch.equal(x.grad, torch.cos(3 * x) * 3)
    assert not torch.equal(block.table, table)


def drawn():
    return random.random()


def passed_on():
    return drawn()


class Noisy(nn.Module):
    noise = None

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(4, 4), nn.Identity()

    def forward(self, x):
        return torch.sin(self.seen(self.linear(x)) * (1 + self.factor()))

    def factor(self):
        return torch.rand((), generator=self.noise)


def imported_inside(_block):
    import numpy  # noqa: ICN001

    return float(numpy.random.rand())  # noqa: NPY002


FACTORS = {
    "the module": lambda _block: random.random(),
    "a function of it": lambda _block: draw(),
    "a function that calls another one": lambda _block: passed_on(),
    "NumPy": lambda _block: float(np.random.rand()),  # noqa: NPY002
    "what is imported inside": imported_inside,
}
NOISY = {what: type("Noisy", (Noisy,), {"factor": factor}) for what, factor in FACTORS.items()}


class ByHook(Noisy):
    def __init__(self):
        super().__init__()
        self.linear.register_forward_hook(lambda _module, _given, result: result * random.random())


class ByGlobal(Noisy):
    def forward(self, x):
        return torch.sin(self.linear(x) * (1 + torch.rand((), generator=GENERATOR)))


class ByClass(Noisy):
    generator = GENERATOR

    def forward(self, x):
        return torch.sin(self.linear(x) * self.factor())

    def factor(self):
        return 1 + torch.rand((), generator=type(self).generator)


@pytest.mark.parametrize("kind", [*NOISY.values(), ByHook], ids=[*NOISY, "a hook"])
def test_a_block_draws_the_same_numbers_of_python_again_and_none_of_those_that_come_after(kind):
    assert_same(kind())


def test_states_are_read_where_a_forward_draws_alone():
    """Reading one takes longer than all else: a block that draws nothing, or names NumPy alone, has none."""

    class Root(Noisy):
        def factor(self):
            return float(np.sqrt(2))

    def streams(kind):
        return streams_in([(kind.forward, kind)])

    assert streams(Noisy) == streams(Root) == []
    assert streams(NOISY["the module"]) == [random]
    assert np.random in streams(NOISY["NumPy"])


def set_system(block, _epoch):
    block.system = random.SystemRandom()


def set_noise(block, epoch):
    block.noise = torch.Generator().manual_seed(epoch)


def set_global(_block, epoch):
    globals()["GENERATOR"] = torch.Generator().manual_seed(epoch)


def set_of_class(_block, epoch):
    ByClass.generator = torch.Generator().manual_seed(epoch)


def put_norm_in(block, epoch):
    if epoch == 1:
        block.linear = nn.Sequential(nn.BatchNorm1d(4), block.linear)
        block.linear.weight = block.linear[1].weight


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(Noisy, set_noise), (ByGlobal, set_global), (ByClass, set_of_class), (Noisy, set_system), (Noisy, put_norm_in)],
)
def test_a_generator_or_a_module_of_a_later_epoch_is_put_back(kind, setting):
    """But for one of the system, which nobody can draw again; statistics of a norm are written once."""
    assert_same(kind(), before_epoch=setting)


class Pair(NamedTuple):
    tensor: torch.Tensor
    name: str = "pair"


@dataclasses.dataclass(frozen=True)
class Frozen:
    tensor: torch.Tensor
    name: str = "frozen"


STRUCTURES = {
    "list": lambda x: [x, "list"],
    "tuple": lambda x: (x, ("tuple",)),
    "mapping": lambda x: {"x": {"y": x}},
    "ordered": lambda x: collections.OrderedDict(x=x),
    "namedtuple": Pair,
    "dataclass": Frozen,
    "sizes": lambda x: [Frozen(x), x.shape],
}


@pytest.mark.parametrize("kind", STRUCTURES)
@pytest.mark.parametrize("by_name", [False, True])
def test_tensors_in_structures_are_given_to_checkpoint_one_by_one(kind, by_name, monkeypatch):
    """In a closure torch sees none of them, and draws no random numbers of a GPU again."""
    seen, x, original = [], torch.linspace(0, 1, 8, requires_grad=True), checkpoints.checkpoint

    def spy(function, *args, **options):
        seen.extend(args)
        return original(function, *args, **options)

    def call(given, *, other=None):
        held = given if other is None else other
        kinds.append(type(held))
        (tensor,) = tensors_in(held)
        return functional.dropout(torch.tanh(tensor), 0.5).square().sum()

    monkeypatch.setattr(checkpoints, "checkpoint", spy)
    given, kinds, gradients = STRUCTURES[kind](x), [], []
    for step in (
        lambda: checkpointed(
            call, (None,) if by_name else (given,), {"other": given} if by_name else {}, watch=watched()
        ),
        lambda: call(given),
    ):
        torch.manual_seed(0)
        gradients += torch.autograd.grad(step(), [x])
    assert torch.equal(*gradients)
    assert [one is x for one in seen] == [True]
    assert kinds == [type(given)] * 3


class Dense(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, features):
        return torch.tanh(self.linear(torch.cat(features, 1)))


def test_a_list_that_grows_after_the_call_is_as_it_was_in_it():
    layers = [Dense(4), Dense(8), Dense(12)]

    def gradients():
        features = [torch.ones(2, 4)]
        for layer in layers:
            features.append(layer(features))
        return torch.autograd.grad(torch.cat(features, 1).square().sum(), [layer.linear.weight for layer in layers])

    expected = gradients()
    for layer in layers:
        put_around(layer, [Checkpoint(layer, watched())])
    assert all(map(torch.equal, gradients(), expected))


def test_what_a_call_appends_to_its_list_is_there_once():
    """The first run is given the very list, and the second one a copy of what it was."""
    layer, kept = nn.Linear(4, 4), []

    def call(x, kept):
        kept.append(x.detach())
        return layer(x)

    checkpointed(call, (torch.ones(2, 4, requires_grad=True), kept), {}, watch=watched()).sum().backward()
    assert len(kept) == 1
