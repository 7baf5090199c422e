import gc
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from autorecompute.backends.torch.fake.tensors import FakeOperators
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.forecast.records import NOTHING

aten = torch.ops.aten


@pytest.fixture
def mode():
    with FakeTensorMode() as mode:
        yield mode


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


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
        (aten.relu_.default, ()),
    ],
)
def test_a_remembered_result_is_the_one_of_the_mode(mode, function, more):
    operators, x = FakeOperators(mode, lambda *_: NOTHING), torch.randn(4, 6)

    def forms(results):
        return [(o.shape, o.stride(), o.dtype, o.device, storage_of(o) == storage_of(x)) for o in results]

    expected = forms(list(tensors_in(function(x, *more))))
    runs = [list(tensors_in(operators.run(function, (x, *more), {})[0])) for _ in range(3)]
    assert [forms(results) for results in runs] == [expected] * 3
    own = [storage_of(one) for results in runs for one in results if storage_of(one) != storage_of(x)]
    assert len(set(own)) == len(own)


def test_a_number_is_told_from_an_equal_one_of_another_type(mode):
    operators = FakeOperators(mode, lambda *_: NOTHING)
    kinds = [operators.run(aten.full.default, ([2], value), {})[0].dtype for value in (1, 1.0, True)]
    assert kinds == [torch.int64, torch.float32, torch.bool]


def test_a_tensor_goes_as_soon_as_nobody_holds_it(mode):
    """Neither memory nor a cycle keeps results or arguments."""
    operators, x = FakeOperators(mode, lambda *_: NOTHING), torch.randn(4, 6)
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
