"""Weights that a forward writes: a momentum encoder, a codebook, a running mean in a plain attribute."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn import Parameter
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from autorecompute.backends.torch.compiled.forms import may_compile
from autorecompute.backends.torch.script_state import CONTAINERS, MOST_ENTRIES, attributes_of
from autorecompute.backends.torch.sharded import is_sharded
from autorecompute.backends.torch.storages import are_spread, changed_by, storage_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch.nn import Module

    Named = tuple[str, Tensor]


@contextlib.contextmanager
def kept_weights(model: Module) -> Iterator[Callable[[], Iterator[Named]]]:
    """Parameters, and tensors in attributes, are afterwards as they were, whatever a forward has put or written there.

    Gives what tells those that were put or written, with their names. Of a model that ``fully_shard`` shards they stay
    as they are left: they are gathered and let go inside.
    """
    if is_sharded(model):
        yield lambda: iter(())
        return
    named = [(module, dict(module._parameters)) for module in model.modules()]
    data = [(name, tensor, tensor.detach()) for name, tensor in _tensors_of(model)]
    # The compiler would leave what it meets under a mode as it is. Fake steps write to real tensors where no fake takes
    # part: a mean in an attribute that is scaled.
    copies = _Copies(data)
    try:
        with copies if not may_compile(model) else contextlib.nullcontext():
            yield functools.partial(_changed, model, data, copies)
    finally:
        for module, parameters in named:
            module._parameters.clear()
            module._parameters.update(parameters)
        for _, tensor, before in data:
            if _place_of(tensor) != _place_of(before):
                tensor.data = before


class _Copies(TorchDispatchMode):  # type: ignore[misc]
    """Copies tensors right before something is written to them, and writes the copies back at the end.

    Args:
        data: Tensors, each with its name before it and another one on the same numbers behind.

    Attributes:
        written: Names of those that something was written to.
    """

    supports_higher_order_operators = True

    def __init__(self, data: Iterable[tuple[str, Tensor, Tensor]]) -> None:
        super().__init__()
        self.written: set[str] = set()
        self._known: dict[int, list[tuple[str, Tensor, Tensor]]] = collections.defaultdict(list)
        for one in data:
            self._known[storage_of(one[-1])._cdata].append(one)
        self._restoring = contextlib.ExitStack()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if are_spread(tuple(types)):  # of a higher-order operator it is a list
            return NotImplemented
        if not isinstance(function, HigherOrderOperator) and function._schema.is_mutable:
            for written in changed_by(function, args, kwargs or {}):
                for one in self._known.pop(storage_of(written)._cdata, ()):
                    self._keep(*one)
        return function(*args, **(kwargs or {}))

    def _keep(self, name: str, tensor: Tensor, same: Tensor) -> None:
        self.written.add(name)
        if not tensor.is_inference():  # a graph of the script's that has saved it finds the numbers that it saved
            self._restoring.push(_unsafe_preserve_version_counter(tensor))
        with _disable_current_modes():  # a fake step's would make a fake of the copy
            self._restoring.callback(same.copy_, same.clone())

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        with torch.no_grad(), self._restoring:
            pass


def _changed(model: Module, data: Iterable[tuple[str, Tensor, Tensor]], copies: _Copies) -> Iterator[Named]:
    known = {id(tensor) for _, tensor, _ in data}
    yield from ((name, tensor.data) for name, tensor in model.named_parameters() if id(tensor) not in known)
    for name, tensor, before in data:
        if name in copies.written or _place_of(tensor) != _place_of(before):
            yield name, tensor.data


def _tensors_of(model: Module) -> list[Named]:
    """Return each parameter, and each tensor in an attribute or in a container there.

    Plain ones, whose numbers lie in one.
    """
    found = list(model.named_parameters())
    for path, module in model.named_modules():
        for name, value in attributes_of(module).items():
            if isinstance(value, Tensor) or (type(value) in {*CONTAINERS, tuple} and len(value) <= MOST_ENTRIES):
                found += ((f"{path}.{name}", tensor) for tensor in tensors_in(value))
    return [(name, one) for name, one in {id(pair[1]): pair for pair in found}.values() if _is_plain(one)]


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in {Tensor, Parameter} and tensor.layout is torch.strided


def _place_of(tensor: Tensor) -> tuple[object, ...]:
    """Return where its numbers lie, and in which form."""
    storage = storage_of(tensor)._cdata
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype
