import dataclasses
import math
import weakref
from collections import UserDict
from typing import NamedTuple

import pytest
import torch

from autorecompute.backends import common
from autorecompute.backends.torch.fake.live import LiveBytes
from autorecompute.backends.torch.find.refusals import classify
from autorecompute.measurement import GradientCheck

TEXT, TARGETS = torch.zeros(16, 32, dtype=torch.long), torch.zeros(16)
STATE = (torch.zeros(3, 16, 8), torch.zeros(3, 16, 8))


@pytest.mark.parametrize(
    ("values", "batch"),
    [
        ([TEXT], 16),
        ([{"ids": TEXT, "mask": TEXT}, torch.zeros(4)], 16),
        ([TEXT, STATE], 16),
        ([torch.tensor(1.0), "text"], 1),
    ],
)
def test_the_batch_is_that_of_most_arguments(values, batch):
    """The state of a recurrent layer is one argument, however many tensors it has."""
    assert common.observe_batch(values) == batch


@dataclasses.dataclass(frozen=True)
class Record:
    inputs: torch.Tensor
    targets: torch.Tensor


class Pair(NamedTuple):
    inputs: torch.Tensor
    targets: torch.Tensor


class Attributes(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


@pytest.mark.parametrize("kind", [Record, Pair, dict, Attributes, UserDict])
def test_fewer_samples_come_as_the_batch_came(kind):
    def count(batch):
        return len(batch.inputs if kind in {Record, Pair} else batch["inputs"])

    given = kind(inputs=TEXT, targets=TARGETS)
    cut = common.slice_batch(given, common.observe_batch([given]))
    assert type(cut) is kind
    assert (count(cut), count(given)) == (2, 16)


def test_the_state_of_a_recurrent_layer_is_cut_along_its_samples():
    assert [part.shape for part in common.slice_batch(STATE, 16)] == [(3, 2, 8)] * 2


@pytest.mark.parametrize(("size", "steps"), [(16, 16), (1, 2)], ids=["with a mask", "without one"])
def test_all_samples_are_compared_where_a_few_cannot_be(size, steps):
    """A square mask has as many rows as the call has samples, and is cut to two rows of sixteen."""

    def compare(args, kwargs):
        (rows,) = args
        (rows @ rows.T + kwargs["mask"]).sum()
        return GradientCheck(agrees=True, worst=0.0, steps=len(rows))

    check = common.on_few_samples(compare, (torch.ones(16, 8),), {"mask": torch.zeros(size, size)}, 16, classify)
    assert check.steps == steps


def test_all_samples_are_compared_without_what_a_few_have_left():
    held = []

    def compare(args, kwargs):
        del kwargs
        if not held:
            activations = torch.ones(3)
            held.append(weakref.ref(activations))
            raise ValueError("not with so few")
        assert held[0]() is None
        return GradientCheck(agrees=True, worst=0.0, steps=len(args[0]))

    assert common.on_few_samples(compare, (torch.ones(16, 8),), {}, 16, classify).steps == 16


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("to_layout", [torch.Tensor.to_sparse_coo, torch.Tensor.to_sparse_csr])
def test_a_graph_is_compared_as_a_whole(to_layout):
    edges = to_layout(torch.eye(16))

    def compare(args, kwargs):
        del kwargs
        nodes, edges = args
        return GradientCheck(agrees=True, worst=0.0, steps=len(edges @ nodes))

    assert common.on_few_samples(compare, (torch.ones(16, 8), edges), {}, 16, classify).steps == 16


def test_what_runs_out_of_memory_with_few_samples_is_not_tried_with_all():
    tried = []

    def compare(args, kwargs):
        del kwargs
        tried.append(len(args[0]))
        return torch.empty(2**48)

    with pytest.raises(RuntimeError, match="allocate"):
        common.on_few_samples(compare, (torch.ones(16, 8),), {}, 16, classify)
    assert tried == [2]


ONE = torch.tensor([1.0, -4.0])


@pytest.mark.parametrize(
    ("expected", "found", "apart"),
    [
        (ONE, ONE.clone(), 0.0),
        (ONE, torch.tensor([1.0, -3.0]), 0.25),
        (torch.tensor([4.0 + 0j]), torch.tensor([4.0 + 1j]), 0.25),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (ONE.to_sparse(), torch.tensor([1.0, -3.0]).to_sparse(), 0.25),
        (torch.tensor([1.0, 2048.0]).half(), torch.tensor([1.0, 2046.0]).half(), 2 / 2048),
        (None, None, 0.0),
        (ONE, None, math.inf),
        (torch.zeros(2), ONE, math.inf),
        (ONE, torch.tensor([1.0, math.nan]), math.inf),
    ],
)
def test_a_difference_is_told_beside_the_largest_entry(expected, found, apart):
    """In half, the share would be rounded away."""
    assert common.relative_difference(expected, found) == apart


def test_each_gradient_is_held_against_its_own_type():
    kinds = {"half": "float16", "wide": "float32"}
    check = common.within({"half": 7.8e-3, "wide": 5e-3}, kinds.__getitem__, 2)
    assert (check.agrees, check.parameter, check.worst) == (False, "wide", 5e-3)
    assert common.within({"half": 7.8e-3, "wide": 5e-5}, kinds.__getitem__, 2).agrees


@pytest.mark.parametrize(("off", "agrees"), [(0.003, True), (0.005, False)])
def test_what_repeats_itself_no_better_may_be_off_by_more(off, agrees):
    found = {"weight": off, "bias of a key": 0.9, "other": 0.0}
    noise = {"weight": 0.001, "bias of a key": 0.8, "other": 0.0}
    check = common.beside_noise(found, noise, common.within(found, lambda _: "float32", 2))
    assert check.agrees is agrees
    assert check.parameter == ("" if agrees else "weight")


WIDE = torch.linspace(-1, 1, 2**20).view(2, 2**10, 2**9)


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    name: str = "scores"


@pytest.mark.parametrize("make", [Output, lambda logits: UserDict(logits=[logits]), lambda logits: {"logits": logits}])
def test_outputs_of_any_kind_weigh_in(make):
    weight = torch.ones(2**9, requires_grad=True)
    common.scalar_of(make(torch.softmax(WIDE * weight, -1))).backward()
    assert weight.grad.abs().max() > 0


@pytest.mark.parametrize("other", [torch.tensor(2.0), torch.ones(1, 1)], ids=["scale", "loss of a mixture of experts"])
def test_every_output_weighs_in(other):
    weight, other = torch.ones(2**9, requires_grad=True), other.clone().requires_grad_()
    common.scalar_of({"features": torch.softmax(WIDE * weight, -1), "other": other}).backward()
    assert weight.grad.abs().max() > 0
    assert other.grad.item() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_weigh_in_without_a_copy_of_them(dtype):
    logits = WIDE.to(dtype).requires_grad_()
    with LiveBytes([logits]) as live:
        (gradient,) = torch.autograd.grad(common.scalar_of((logits,)), [logits])
    assert gradient.abs().max() > 0
    assert live.peak - live.base < 1.1 * logits.nbytes
