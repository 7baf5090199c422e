"""The samples of a call, and fewer of them."""

import dataclasses
from collections import UserDict
from typing import NamedTuple

import pytest
import torch

from autorecompute.backends.common.batches import observe_batch, on_few_samples, slice_batch
from autorecompute.backends.torch.failures import classify
from autorecompute.measurement import GradientCheck


@dataclasses.dataclass(frozen=True)
class Record:
    """A batch as a dataclass."""

    inputs: torch.Tensor
    targets: torch.Tensor


class Pair(NamedTuple):
    """A batch as a named tuple."""

    inputs: torch.Tensor
    targets: torch.Tensor


TEXT, TARGETS = torch.zeros(16, 32, dtype=torch.long), torch.zeros(16)
STATE = (torch.zeros(3, 16, 8), torch.zeros(3, 16, 8))


@pytest.mark.parametrize(
    ("values", "batch"),
    [
        ([TEXT], 16),
        ([{"ids": TEXT, "mask": TEXT}, torch.zeros(4)], 16),
        ([TEXT, STATE], 16),
        ([Record(TEXT, TARGETS)], 16),
        ([Pair(TEXT, TARGETS)], 16),
        ([torch.tensor(1.0), "text"], 1),
    ],
)
def test_the_batch_is_that_of_most_arguments(values, batch):
    """The state of a recurrent layer is one argument, however many tensors it has; without any tensor it is 1."""
    assert observe_batch(values) == batch


@pytest.mark.parametrize("kind", [Record, Pair])
def test_records_are_cut_as_what_they_are(kind):
    """Dataclasses, frozen ones too, and named tuples keep their class, and the given one is left as it is."""
    given = kind(TEXT, TARGETS)
    cut = slice_batch(given, 16)
    assert isinstance(cut, kind)
    assert (len(cut.inputs), len(cut.targets), len(given.inputs)) == (2, 2, 16)


class Attributes(dict):
    """Entries that can be read as attributes, as several packages have it."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


@pytest.mark.parametrize("kind", [dict, Attributes, UserDict])
def test_mappings_are_cut_as_what_they_are(kind):
    """A forward that reads ``batch.inputs`` can do so of fewer samples, and the given one is left as it is."""
    given = kind(inputs=TEXT, targets=TARGETS)
    cut = slice_batch(given, observe_batch([given]))
    assert type(cut) is kind
    assert [len(entries["inputs"]) for entries in (cut, given)] == [2, 16]


def test_the_state_of_a_recurrent_layer_is_cut_along_its_samples():
    """Samples are its second dimension."""
    assert [part.shape for part in slice_batch(STATE, 16)] == [(3, 2, 8)] * 2


def compare(rows, mask):
    """Attends over rows as a transformer does whose sequence comes first."""
    (rows @ rows.T + mask).sum()
    return GradientCheck(agrees=True, worst=0.0, steps=len(rows))


@pytest.mark.parametrize(("size", "steps"), [(16, 16), (1, 2)], ids=["with a mask", "without one"])
def test_all_samples_are_compared_where_a_few_cannot_be(size, steps):
    """A square mask has as many rows as the call has samples, and is cut to two rows of sixteen."""
    kwargs = {"mask": torch.zeros(size, size)}
    assert (
        on_few_samples(lambda args, cut: compare(*args, **cut), (torch.ones(16, 8),), kwargs, 16, classify).steps
        == steps
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("to_layout", [torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr])
def test_a_graph_is_compared_as_a_whole(to_layout):
    """Its edges are a sparse matrix, of which nothing is cut, and the nodes of two samples are no graph."""
    edges = to_layout(torch.eye(16))

    def compare(args, kwargs):
        del kwargs
        nodes, edges = args
        return GradientCheck(agrees=True, worst=0.0, steps=len(edges @ nodes))

    assert on_few_samples(compare, (torch.ones(16, 8), edges), {}, 16, classify).steps == 16


def test_what_runs_out_of_memory_with_few_samples_is_not_tried_with_all():
    """It would run out of memory again, and later."""
    tried = []

    def compare(args, kwargs):
        del kwargs
        tried.append(len(args[0]))
        return torch.empty(2**48)

    with pytest.raises(RuntimeError, match="allocate"):
        on_few_samples(compare, (torch.ones(16, 8),), {}, 16, classify)
    assert tried == [2]
