"""A call with other tensors in its arguments: its forward writes to copies, and to no object of the script's."""

from __future__ import annotations

import copy
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable

DEEPEST = 2
"""Objects of the script's lie so deep in one another in a batch; deeper ones are what it was made from."""


def exchanged(value: Any, exchange: Callable[[Tensor], Tensor]) -> Any:
    """Return the same structure in copies of its containers and objects, with other tensors in it.

    Lists, tuples, mappings, dataclasses and other objects that hold data are copied, and what is in two places is one
    object in both. Modules, functions, data sets and what cannot be copied stay themselves.

    Args:
        value: Arguments of a call.
        exchange: Gives what takes a tensor's place.
    """
    return _Exchange(exchange).of(value)


class _Exchange:
    def __init__(self, exchange: Callable[[Tensor], Tensor]) -> None:
        self._exchange = exchange
        self._copies: dict[int, Any] = {}

    def of(self, value: Any, depth: int = 0) -> Any:
        return tree_map(lambda leaf: self._leaf(leaf, depth), value)

    def _leaf(self, leaf: Any, depth: int) -> Any:
        if isinstance(leaf, Tensor):
            return self._exchange(leaf)
        is_data = isinstance(leaf, MutableMapping | list) or hasattr(type(leaf), "__dataclass_fields__")
        if id(leaf) not in self._copies and (is_data or (depth < DEEPEST and _can_be_copied(leaf))):
            self._copies[id(leaf)] = other = _copy_of(leaf)
            if other is not leaf:
                self._fill(leaf, other, depth if is_data else depth + 1)
        return self._copies.get(id(leaf), leaf)

    def _fill(self, value: Any, other: Any, depth: int) -> None:
        """Put copies in place of what a copy shares with what it was made from."""
        own = getattr(other, "__dict__", {})
        for name, part in list(own.items()):
            own[name] = self.of(part, depth)
        for name in getattr(type(value), "__dataclass_fields__", ()):
            if name not in own and hasattr(value, name):  # it lies in a slot
                object.__setattr__(other, name, self.of(getattr(value, name), depth))  # it may be frozen
        if isinstance(value, MutableMapping | list):
            for key, part in list(value.items() if isinstance(value, MutableMapping) else enumerate(value)):
                other[key] = self.of(part, depth)


def _can_be_copied(value: Any) -> bool:
    """Tell whether an object holds data alone, as a batch of a class of its own does."""
    if callable(value) or isinstance(value, Dataset | DataLoader | Optimizer) or hasattr(type(value), "__del__"):
        return False
    return bool(getattr(value, "__dict__", None))


def _copy_of(value: Any) -> Any:
    try:
        return copy.copy(value)
    except Exception:  # noqa: BLE001  (its class may refuse that in any way: a lock does, and a file)
        return value
