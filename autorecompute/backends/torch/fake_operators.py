"""What operators give on fake tensors, remembered by the forms of their arguments.

``FakeTensorMode`` remembers results too, but looking one up takes it several times as long. All steps of a survey run
the same operators on the same forms.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from autorecompute.backends.torch.amounts import NOTHING, Amount

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.backends.torch.work import Work

_UNSAFE_VIEW = torch.ops.aten._unsafe_view.default
_NEVER_THE_SAME = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view}
_CONSTANTS = {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}


class _UnknownFormError(Exception):
    """The form of a value does not tell all about it."""


class _Made(NamedTuple):
    """A tensor in a storage of its own."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class _Given(NamedTuple):
    """A tensor that is an argument, by its place among them."""

    place: int


class _Answer(NamedTuple):
    """What an operator gives.

    Attributes:
        result: Its result, with forms in place of tensors.
        work: What it computes.
    """

    result: Any
    work: Amount


class FakeOperators:
    """Runs operators on fake tensors.

    Args:
        mode: That of the tensors.
        work: Tells the work of every operator; ``None`` where nobody asks.
    """

    def __init__(self, mode: FakeTensorMode, work: Work | None = None) -> None:
        self._mode = mode
        self._work = work
        self._answers: dict[Any, _Answer] = {}

    def run(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Amount]:
        """Return what an operator gives, and the work that it is."""
        if _is_view(function) and not kwargs and type(args[0]) is FakeTensor:
            result = _view(function, args)
            return result, NOTHING if function is not _UNSAFE_VIEW else self.work_of(function, args, kwargs, result)
        tensors: list[FakeTensor] = []
        try:
            key = _key(function, args, kwargs, tensors)
        except _UnknownFormError:
            result = function(*args, **kwargs)
            return result, self.work_of(function, args, kwargs, result)
        answer = self._answers.get(key)
        if answer is not None:
            return self._tensors_of(answer.result, tensors), answer.work
        result = function(*args, **kwargs)
        work = self.work_of(function, args, kwargs, result)
        with contextlib.suppress(_UnknownFormError):
            taken = {tensor.untyped_storage()._cdata for tensor in tensors}
            self._answers[key] = _Answer(_form_of(result, tensors, taken), work)
        return result, work

    def work_of(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Amount:
        """Return the work of an operator that gave this."""
        return self._work.of(function, args, kwargs, result) if self._work is not None else NOTHING

    def _tensors_of(self, form: Any, given: Sequence[FakeTensor]) -> Any:
        if isinstance(form, _Made):
            with torch._C._DisableTorchDispatch():
                made = torch.empty_strided(form.size, form.stride, dtype=form.dtype, device="meta")
            return FakeTensor(self._mode, made, form.device)
        if isinstance(form, _Given):
            return given[form.place]
        return type(form)(self._tensors_of(one, given) for one in form) if isinstance(form, (tuple, list)) else form


@functools.cache
def _is_view(function: Any) -> bool:
    """Tell whether an operator only looks at its first argument in another way."""
    return function is _UNSAFE_VIEW or getattr(function, "is_view", False)


def _view(function: Any, args: tuple[Any, ...]) -> Any:
    """Return what ``FakeTensorMode`` gives for a view, in less time."""
    mode, device = args[0].fake_mode, args[0].fake_device
    with in_kernel_invocation_manager(mode):
        result = function(*args)
    if isinstance(result, Tensor):
        return FakeTensor(mode, result, device)
    return [FakeTensor(mode, tensor, device) for tensor in result]


@functools.cache
def _is_told_by_forms(function: Any) -> bool:
    """Tell whether the forms of an operator's arguments tell that of its result."""
    is_plain = isinstance(function, OpOverload) and function.namespace in {"aten", "prims"}
    return is_plain and _NEVER_THE_SAME.isdisjoint(function.tags)


def _key(function: Any, args: Any, kwargs: Any, tensors: list[FakeTensor]) -> tuple[Any, ...]:
    """Return an operator with the forms of its arguments, whose tensors are added to the list.

    Raises:
        _UnknownFormError: They do not tell what it gives.
    """
    if not _is_told_by_forms(function):
        raise _UnknownFormError
    parts: list[Any] = [function, torch.get_default_dtype()]
    for value in args:
        _add(value, parts, tensors)
    for name, value in kwargs.items():
        parts.append(name)
        _add(value, parts, tensors)
    return tuple(parts)


def _add(value: Any, parts: list[Any], tensors: list[FakeTensor]) -> None:
    if type(value) is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided or value.dtype.is_complex:
            raise _UnknownFormError
        tensors.append(value)
        parts += (value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device)
    elif isinstance(value, (tuple, list)):
        parts.append(len(value))
        for one in value:
            _add(one, parts, tensors)
    elif type(value) in _CONSTANTS:
        parts += (type(value), value)  # 1, 1.0 and True are equal
    else:
        raise _UnknownFormError


def _form_of(result: Any, given: Sequence[FakeTensor], taken: set[int]) -> Any:
    """Return the result with forms in place of tensors, whose storages are added to those that are taken.

    Raises:
        _UnknownFormError: A tensor lies on a part of a storage, or on one that is taken.
    """
    if type(result) is FakeTensor:
        place = next((place for place, tensor in enumerate(given) if tensor is result), None)
        return _Given(place) if place is not None else _made(result, taken)
    if type(result) in {tuple, list}:
        return type(result)([_form_of(one, given, taken) for one in result])
    if type(result) in _CONSTANTS:
        return result
    raise _UnknownFormError


def _made(tensor: FakeTensor, taken: set[int]) -> _Made:
    storage = tensor.untyped_storage()
    made = _Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device)
    is_whole = storage.nbytes() == _bytes_of(made) and tensor.storage_offset() == 0 and tensor.constant is None
    if not is_whole or storage._cdata in taken:
        raise _UnknownFormError
    taken.add(storage._cdata)
    return made


def _bytes_of(made: _Made) -> int:
    if 0 in made.size:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(made.size, made.stride, strict=True))
    size: int = (last + 1) * made.dtype.itemsize
    return size
