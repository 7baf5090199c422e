"""Tensors in arguments, wherever they lie."""

import collections
import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn

from autorecompute.backends.torch import checkpoints
from autorecompute.backends.torch.checkpoints import Checkpoint, checkpointed
from autorecompute.backends.torch.interception import put_around
from autorecompute.backends.torch.storages import tensors_in, with_leaves


class Pair(NamedTuple):
    """A tensor with a name."""

    tensor: torch.Tensor
    name: str = "pair"


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A tensor in a dataclass."""

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
    seen, x = [], torch.linspace(0, 1, 8, requires_grad=True)
    original = checkpoints.checkpoint

    def spy(function, *args, **options):
        seen.extend(args)
        return original(function, *args, **options)

    def call(given, *, other=None):
        held = given if other is None else other
        kinds.append(type(held))
        (tensor,) = tensors_in(held)
        return nn.functional.dropout(torch.tanh(tensor), 0.5).square().sum()

    monkeypatch.setattr(checkpoints, "checkpoint", spy)
    given, kinds = STRUCTURES[kind](x), []
    torch.manual_seed(0)
    checkpointed(call, (None,) if by_name else (given,), {"other": given} if by_name else {}).backward()
    gradient, x.grad = x.grad, None
    torch.manual_seed(0)
    call(given).backward()
    assert torch.equal(gradient, x.grad)
    assert [one is x for one in seen] == [True]
    assert len(kinds) == 3
    assert len(set(kinds)) == 1


class Dense(nn.Module):
    """A layer that is given what all before it gave, in a list that grows after its call."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 4)

    def forward(self, features):
        """One more."""
        return torch.tanh(self.linear(torch.cat(features, 1)))


def test_a_list_that_grows_after_the_call_is_as_it_was_in_it():
    """So the blocks of a DenseNet get theirs."""
    layers = [Dense(4), Dense(8), Dense(12)]

    def gradients():
        features = [torch.ones(2, 4)]
        for layer in layers:
            features.append(layer(features))
        torch.cat(features, 1).square().sum().backward()
        found = [layer.linear.weight.grad.clone() for layer in layers]
        for layer in layers:
            layer.zero_grad()
        return found

    expected = gradients()
    for layer in layers:
        put_around(layer, [Checkpoint(layer)])
    assert all(map(torch.equal, gradients(), expected))


def test_what_a_call_appends_to_its_list_is_there_once():
    """The first run is given the very list, and the second one a copy of what it was."""
    layer, kept = nn.Linear(4, 4), []

    def call(x, kept):
        kept.append(x.detach())
        return layer(x)

    checkpointed(call, (torch.ones(2, 4, requires_grad=True), kept), {}).sum().backward()
    assert len(kept) == 1


def test_objects_without_what_is_exchanged_stay_themselves():
    """Configs, sizes and caches may be of any class, which need not bear a copy."""
    kept = [Frozen(1), torch.Size([1, 2]), collections.Counter("a"), object()]
    assert all(one is other for one, other in zip(with_leaves(kept, lambda leaf: leaf), kept, strict=True))
