"""Operators on fake tensors that are answered from memory: the forms of FakeTensorMode, in storages of their own."""

import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autorecompute.backends.torch.fake_operators import FakeOperators
from autorecompute.backends.torch.storages import tensors_in

aten = torch.ops.aten


@pytest.fixture
def mode():
    """A mode that is on."""
    with FakeTensorMode() as mode:
        yield mode


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (aten.add.Tensor, (1,)),
        (aten.mean.dim, ([1], True)),
        (aten.native_layer_norm.default, ([6], None, None, 1e-5)),
        (aten.transpose.int, (0, 1)),
        (aten._unsafe_view.default, ([24],)),
        (aten.split.Tensor, (2, 1)),
        (aten.max.dim, (1,)),
        (aten._to_copy.default, ()),
    ],
)
def test_a_remembered_result_is_the_one_of_the_mode(mode, function, more):
    """Forms are equal, and the same results lie on the argument."""
    operators, x = FakeOperators(mode), torch.randn(4, 6)
    expected = list(tensors_in(function(x, *more)))
    for _ in range(2):
        found = list(tensors_in(operators.run(function, (x, *more), {})[0]))
        assert [(one.shape, one.stride(), one.dtype, one.device) for one in found] == [
            (one.shape, one.stride(), one.dtype, one.device) for one in expected
        ]
        shares = [one.untyped_storage()._cdata == x.untyped_storage()._cdata for one in found]
        assert shares == [one.untyped_storage()._cdata == x.untyped_storage()._cdata for one in expected]


def test_results_of_one_operator_lie_in_storages_of_their_own(mode):
    """What is counted goes storage by storage."""
    operators, x = FakeOperators(mode), torch.randn(4)
    results = [operators.run(aten.relu.default, (x,), {})[0] for _ in range(3)]
    assert len({one.untyped_storage()._cdata for one in results}) == 3


def test_a_number_is_told_from_an_equal_one_of_another_type(mode):
    """The type of a number decides about that of a tensor."""
    operators = FakeOperators(mode)
    kinds = [operators.run(aten.full.default, ([2], value), {})[0].dtype for value in (1, 1.0, True)]
    assert kinds == [torch.int64, torch.float32, torch.bool]


def test_what_is_changed_in_place_is_given_back(mode):
    """It is the tensor of this call, not of the remembered one."""
    operators = FakeOperators(mode)
    for x in (torch.randn(4), torch.randn(4)):
        assert operators.run(aten.relu_.default, (x,), {})[0] is x


def test_a_tensor_goes_as_soon_as_nobody_holds_it(mode):
    """Neither memory nor a cycle keeps results or arguments."""
    operators, x = FakeOperators(mode), torch.randn(4, 6)
    gc.disable()
    try:
        for _ in range(2):  # the first is run, the second remembered
            result = weakref.ref(operators.run(aten.native_layer_norm.default, (x, [6], None, None, 1e-5), {})[0][0])
            assert result() is None
        argument = torch.randn(4, 6)
        operators.run(aten.exp.default, (argument,), {})
        argument = weakref.ref(argument)
        assert argument() is None
    finally:
        gc.enable()
