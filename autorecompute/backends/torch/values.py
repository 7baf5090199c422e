"""What a model looks at in its tensors: recorded where they are real, and told again where they are fake.

Python code may branch on a value (``if torch.all(mask == 1)``), and some operators give as many elements as the values
say (``nonzero``). Both are recorded in the order of a forward pass, module by module, since a module that runs again
looks again.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from autorecompute.backends.torch.storages import tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Module

_TAGS = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class UnknownValueError(Exception):
    """A value is looked at that nobody has recorded."""


@dataclasses.dataclass(frozen=True)
class _Shape:
    """A tensor of which only the form is known."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> _Shape:
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def tensor(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


class Values:
    """Values that modules look at, by the path of the innermost module, the operator, and their order."""

    def __init__(self) -> None:
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
        self._recorded[path][function].append(tree_map_only(Tensor, _Shape.of, result))

    def next(self, function: Any) -> Any:
        """Return what an operator gave that looks now.

        Raises:
            UnknownValueError: Nothing was recorded.
        """
        path = self._stack[-1]
        recorded = self._recorded[path].get(function, []) if path in self._recorded else []
        place = self._read[path][function] if path is not None else 0
        if path is None or place >= len(recorded):
            if function is torch.ops.aten._local_scalar_dense.default:
                return 1.0  # the optimizer's count of steps, a norm to be printed: no memory depends on it
            raise UnknownValueError(
                f"{path or 'the model or the script'} looks at a value of a tensor, which was not recorded"
            )
        self._read[path][function] = place + 1
        return tree_map_only(_Shape, _Shape.tensor, recorded[place])


def looks_at_values(function: Any, args: tuple[Any, ...]) -> bool:
    """Tell whether an operator's result, or its shape, depends on the values of its arguments."""
    if function is torch.ops.aten.index.Tensor:  # as many elements as its indices have, unless they are masks
        return any(index.dtype in {torch.bool, torch.uint8} for index in tensors_in(args[1]))
    return _depends_on_values(function)


@functools.cache
def _depends_on_values(function: Any) -> bool:
    return any(tag in getattr(function, "tags", ()) for tag in _TAGS)
