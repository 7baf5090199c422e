"""Batches of any class, to which a forward writes: what is tried on the side writes to copies of them."""

import collections
import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BatchEncoding

from autorecompute.backends.torch.arguments import exchanged
from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import Script
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.options import CHECKPOINT
from autorecompute.backends.torch.storages import tensors_in, with_leaves
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.plans import Choice

X = torch.linspace(-1, 1, 32).reshape(8, 4)


@dataclasses.dataclass
class Fields:
    """A batch with a field for each tensor."""

    x: Any
    labels: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
    """The same without a dictionary."""

    x: Any
    labels: Any = None


class Store(collections.UserDict):
    """A mapping that is no ``dict``."""


class Graph:
    """A batch whose tensors lie in an object within it, which knows it, as in PyTorch Geometric."""

    def __init__(self, x, labels):
        self.store = Store(x=x, labels=labels)
        self.store.graph = self

    x = property(lambda self: self.store["x"], lambda self, value: self.store.update(x=value))
    labels = property(lambda self: self.store["labels"], lambda self, value: self.store.update(labels=value))


class Attributes(dict):
    """A mapping whose entries are its attributes, too."""

    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__ = self


BATCHES = {
    "dataclass": Fields,
    "slots": Slots,
    "object": SimpleNamespace,
    "graph": Graph,
    "attributes": Attributes,
}


class Rewriting(nn.Module):
    """Puts what it computes in its batch's place, and takes the labels out."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, batch):
        """A loss."""
        batch.x = 3 * batch.x - batch.x.mean(0)
        for block in self.blocks:
            batch.x = block(batch.x)
        labels, batch.labels = batch.labels, None
        return (batch.x - labels).square().sum()


class Popping(Rewriting):
    """Takes the labels out of a mapping."""

    def forward(self, batch):
        """A loss."""
        return super().forward(SimpleNamespace(labels=batch.pop("labels"), x=batch["x"]))


def look_at(model, batch):
    """All that is run on the side before a step."""
    found = detect(model, (batch,), {})
    board = found.switchboard(model)
    survey_steps(model, found, board, Script((batch,), {}, [torch.optim.SGD(model.parameters(), lr=0.1)]))
    return check_gradients(model, board, [Choice("blocks.*", CHECKPOINT)], (batch,), {})


@pytest.mark.parametrize("kind", BATCHES)
def test_a_forward_that_writes_to_its_batch_finds_it_as_the_script_made_it(kind):
    """Neither fake tensors nor what the forward wrote are in it when the real step begins."""
    labels = torch.ones(8, 4)
    batch = BATCHES[kind](x=X.clone(), labels=labels)
    x = batch.x
    assert look_at(Rewriting(), batch).agrees
    assert batch.x is x
    assert torch.equal(x, X)
    assert batch.labels is labels


@pytest.mark.parametrize(
    "kind", [dict, Store, lambda **entries: BatchEncoding(entries)], ids=["dict", "own", "encoding"]
)
def test_labels_that_a_forward_takes_out_of_a_mapping_are_there_each_time(kind):
    """So they are in the real step."""
    batch = kind(x=X, labels=torch.ones(8, 4))
    assert look_at(Popping(), batch).agrees
    assert list(batch) == ["x", "labels"]


def test_what_holds_no_data_stays_itself():
    """So do modules, data sets, what an object was made from, and what cannot be copied; what was one object is one."""
    deep = SimpleNamespace(inner=SimpleNamespace(source=SimpleNamespace(x=X)))
    shared, kept = Fields(X), [nn.Linear(1, 1), print, threading.Lock(), torch.utils.data.TensorDataset(X), object()]
    (one, other), same, (far,) = exchanged(([shared, shared], kept, [deep]), torch.Tensor.clone)
    assert one is other is not shared
    assert all(map(lambda new, old: new is old, same, kept))
    assert far.inner is not deep.inner
    assert far.inner.source is deep.inner.source


def test_tensors_in_any_mapping_are_found_and_exchanged():
    """A result may be a mapping of the script's own class."""
    made = with_leaves(Store(x=X), lambda leaf: 2 * leaf if leaf is X else leaf)
    assert isinstance(made, Store)
    (found,) = tensors_in(made)
    assert torch.equal(found, 2 * X)
