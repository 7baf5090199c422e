"""The storages of tensors, and the values that a step may depend on."""

from __future__ import annotations

import collections
import functools
import itertools
import weakref
from numbers import Number
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from autorecompute.backends.common import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.nn import Module


class Storages:
    """Gives every storage a number of its own; the address of one that is gone may be another's a moment later.

    ``gone`` is called with a storage's number when the last tensor on it is gone.
    """

    def __init__(self, gone: Callable[[int], None] | None = None) -> None:
        self._numbers: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._next = itertools.count()
        self._gone = gone or (lambda _number: None)

    def number(self, tensor: Tensor) -> int:
        """Return the number of the storage on which the tensor stands."""
        return self.see(tensor)[0]

    def see(self, tensor: Tensor) -> tuple[int, int]:
        """Return the number of the tensor's storage, and its bytes if it was never seen before; else 0."""
        return self.see_storage(storage_of(tensor))

    def see_storage(self, storage: torch.UntypedStorage) -> tuple[int, int]:
        """Return the same of a storage."""
        address = storage._cdata
        known = self._numbers.get(address)
        if known is not None:
            return known[0], 0
        number = next(self._next)
        self._numbers[address] = number, weakref.ref(storage, functools.partial(self._forget, address, number))
        return number, storage.nbytes()

    def _forget(self, address: int, number: int, _reference: object) -> None:
        if self._numbers.get(address, (None,))[0] == number:
            del self._numbers[address]
            self._gone(number)


def storage_of(tensor: Tensor) -> torch.UntypedStorage:
    """Return the storage of a tensor. Of one that is spread over ranks this rank's part, of a sparse one its values."""
    own = getattr(tensor, "_local_tensor", tensor)
    if own.is_sparse:
        own = own._values()
    elif own.layout is not torch.strided:
        own = own.values()
    return own.untyped_storage()


@functools.cache
def are_spread(types: tuple[type, ...]) -> bool:
    """Tell whether a tensor of one of these types stands for others: it is spread over ranks, or logits to be made.

    Its own operators are those on this rank's part, or on what was made.
    """
    return any(kind.__name__ in _STANDING_FOR_OTHERS for kind in types)


_STANDING_FOR_OTHERS = frozenset({"DTensor", "Logits"})


def changed_by(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors that an operator writes."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.is_write:
            yield from tensors_in(args[place] if place < len(args) else kwargs.get(argument.name))


def _form_of(tensor: Tensor) -> functools.partial[Tensor]:
    """Return what makes a tensor of the same form."""
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    return functools.partial(torch.empty_strided, size, stride, dtype=tensor.dtype, device=tensor.device)


WITH_FAKES = frozenset({"aten", "prim", "prims"})  # namespaces of operators that fake tensors can run


def _forms_of(value: Any) -> tuple[Any, ...]:
    """Return what a value is made of, of tensors their types and shapes."""
    return tuple(
        [(one.dtype, tuple(one.shape)) if isinstance(one, Tensor) else repr(one) for one in tree_leaves(value)]
    )


class Values:
    """Values that modules look at, by the path of the innermost module, the operator, and their order.

    Of operators that are not torch's own, the forms of what they gave are known, too: their kernels may have nothing
    that tells fake tensors.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[Any, ...], Any] = {}
        self._recorded: dict[str, dict[Any, list[Any]]] = collections.defaultdict(lambda: collections.defaultdict(list))
        self._read: dict[str, collections.Counter[Any]] = collections.defaultdict(collections.Counter)
        self._stack: list[str | None] = [None]  # None: the script's own code

    @property
    def paths(self) -> list[str]:
        """Paths of the modules that look at values."""
        return list(self._recorded)

    def around(self, path: str) -> Callable[..., Any]:
        """Follow the calls of the module with this path; an ``Around``, inside what makes the module run again."""

        def around(forward: Callable[..., Any], _module: Module, /, *args: Any, **kwargs: Any) -> Any:
            before = self._read[path].copy()
            self._stack.append(path)
            if torch._C._current_autograd_node() is not None:
                self._read[path].clear()
            try:
                return forward(*args, **kwargs)
            finally:
                self._stack.pop()
                self._read[path] |= before

        return around

    def rewind(self) -> None:
        """Begin a step: every module looks at its first value again."""
        self._read.clear()

    def record(self, path: str, function: Any, result: Any) -> None:
        """Keep what an operator gave that the module with this path called."""
        self._recorded[path][function].append(tree_map_only(Tensor, _form_of, result))

    def keep_form(self, function: Any, arguments: Any, result: Any) -> None:
        """Keep the form of what an operator gave for these arguments, where strides tell it."""
        if any(one.layout is not torch.strided or one.is_nested for one in tensors_in(result)):
            return
        # A collective gives a handle, too, which keeps what was gathered.
        if not all(one is None or isinstance(one, (Tensor, Number)) for one in tree_leaves(result)):
            return
        self._given[function, *_forms_of(arguments)] = tree_map_only(Tensor, _form_of, result)

    def of_form(self, function: Any, arguments: Any) -> Any:
        """Return what an operator gives for arguments of these forms.

        One that runs in a backward pass alone was not seen. It is taken to write gradients where it is told, and to
        return nothing that anybody reads.

        Raises:
            LookupError: it gave nothing for them.
        """
        known = self._given.get((function, *_forms_of(arguments)))
        if known is not None:
            return tree_map_only(functools.partial, lambda make: make(), known)
        if torch._C._current_autograd_node() is None or any(key[0] is function for key in self._given):
            raise LookupError(f"{function} was seen with other arguments, and no fake tensors can run it")
        near = next(tensors_in(arguments))
        empty = [near.new_empty(0) for _ in function._schema.returns]
        return empty[0] if len(empty) == 1 else tuple(empty) or None

    def next(self, function: Any) -> Any:
        """Return the recorded value for an operator that looks now.

        Raises:
            LookupError: Nothing was recorded.
        """
        path = self._stack[-1]
        recorded = self._recorded[path].get(function, []) if path in self._recorded else []
        place = self._read[path][function] if path is not None else 0
        if path is None or place >= len(recorded):
            if function is torch.ops.aten._local_scalar_dense.default:
                return 1.0  # the optimizer's count of steps, a norm to be printed: no memory depends on it
            raise LookupError(
                f"{path or 'the model or the script'} looks at a value of a tensor, which was not recorded"
            )
        self._read[path][function] = place + 1
        return tree_map_only(functools.partial, lambda make: make(), recorded[place])


def looks_at_values(function: Any, args: tuple[Any, ...]) -> bool:
    """Tell whether an operator's result, or its shape, depends on the values of its arguments."""
    if function is torch.ops.aten.index.Tensor:  # as many elements as its indices have, unless they are masks
        return any(index.dtype in {torch.bool, torch.uint8} for index in tensors_in(args[1]))
    return _depends_on_values(function)


@functools.cache
def _depends_on_values(function: Any) -> bool:
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return not tags.isdisjoint(getattr(function, "tags", ()))
