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

from autorecompute.backends.common import with_leaves
from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.forecast.records import CHECKPOINT
from autorecompute.backends.torch.switch.module_state import exchanged
from autorecompute.plans import Choice

X = torch.linspace(-1, 1, 32).reshape(8, 4)


@dataclasses.dataclass
class Fields:
    x: Any
    labels: Any = None


@dataclasses.dataclass(slots=True)
class Slots:
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
    def __init__(self, **entries):
        super().__init__(entries)
        self.__dict__ = self


class Rewriting(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, batch):
        batch.x = 3 * batch.x - batch.x.mean(0)
        for block in self.blocks:
            batch.x = block(batch.x)
        labels, batch.labels = batch.labels, None
        return (batch.x - labels).square().sum()


class Popping(Rewriting):
    def forward(self, batch):
        return super().forward(SimpleNamespace(labels=batch.pop("labels"), x=batch["x"]))


def look_at(model, batch):
    found = detect(model, (batch,), {})
    board = found.switchboard(model)
    survey_steps(model, found, board, Script((batch,), {}, [torch.optim.SGD(model.parameters(), lr=0.1)]))
    return check_gradients(model, board, [Choice("blocks.*", CHECKPOINT)], (batch,), {})


@pytest.mark.parametrize("kind", [Fields, Slots, SimpleNamespace, Graph, Attributes])
def test_a_forward_that_writes_to_its_batch_finds_it_as_the_script_made_it(kind):
    labels = torch.ones(8, 4)
    batch = kind(x=(x := X.clone()), labels=labels)
    assert look_at(Rewriting(), batch).agrees
    assert batch.x is x
    assert torch.equal(x, X)
    assert batch.labels is labels


@pytest.mark.parametrize(
    "kind", [dict, Store, lambda **entries: BatchEncoding(entries)], ids=["dict", "own", "encoding"]
)
def test_labels_that_a_forward_takes_out_of_a_mapping_are_there_each_time(kind):
    batch = kind(x=X, labels=torch.ones(8, 4))
    assert look_at(Popping(), batch).agrees
    assert list(batch) == ["x", "labels"]


def test_tensors_in_any_mapping_are_found_and_exchanged_and_what_holds_no_data_stays_itself():
    deep = SimpleNamespace(inner=SimpleNamespace(source=SimpleNamespace(x=X)))
    shared, kept = Fields(X), [nn.Linear(1, 1), print, threading.Lock(), torch.utils.data.TensorDataset(X), object()]
    (one, other), same, (far,) = exchanged(([shared, shared], kept, [deep]), torch.Tensor.clone)
    assert one is other is not shared
    assert all(map(lambda new, old: new is old, same, kept))
    assert far.inner is not deep.inner
    assert far.inner.source is deep.inner.source
    made = with_leaves(Store(x=X), lambda leaf: 2 * leaf if leaf is X else leaf)
    assert isinstance(made, Store)
    (found,) = tensors_in(made)
    assert torch.equal(found, 2 * X)
