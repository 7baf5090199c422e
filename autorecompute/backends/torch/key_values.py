"""Key-value caches that a model fills in training, where nothing reads them.

A decoder of Transformers makes one in every forward unless its config says ``use_cache=False``. A block that ran twice
would append its keys and values twice, and what it appended would stay in memory. So a block that is run again writes
to an empty cache of its own, which is gone when it returns.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.nn import Module

GROWING, PAIR = "DynamicCache", "EncoderDecoderCache"
"""Classes of Transformers: one that begins empty and grows, and two of them for a decoder that reads an encoder. Other
caches hold their memory from the start, or move it, and are left alone."""

PARTS = ("self_attention_cache", "cross_attention_cache")
INDEX = "layer_idx"
"""Under this name an attention of Transformers knows its place in a cache."""


def has_cache(values: Iterable[Any]) -> bool:
    """Tell whether a key-value cache is among these arguments."""
    return any(map(_is_cache, values))


def can_have_its_own(module: Module, values: Iterable[Any]) -> bool:
    """Tell whether the module may write to another cache than those among its arguments, if there are any.

    It may where they grow and hold nothing of its layers yet: what it reads is then what it wrote in the same call.
    """
    caches = [part for value in values if _is_cache(value) for part in _parts_of(value)]
    if not caches:
        return True
    places = {getattr(inner, INDEX, None) for inner in module.modules()} - {None}
    is_growing = all(type(cache).__name__ == GROWING for cache in caches)
    return bool(places) and is_growing and not any(cache.get_seq_length(at) for cache in caches for at in places)


def with_its_own(
    forward: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Return a forward that writes to empty caches, new ones in each call, and its arguments without those given."""

    @functools.wraps(forward)
    def run(*given: Any, **named: Any) -> Any:
        return forward(*map(_emptied, given), **{name: _emptied(value) for name, value in named.items()})

    return run, tuple(map(_emptied, args)), {name: _emptied(value) for name, value in kwargs.items()}


def _is_cache(value: Any) -> bool:
    if value is None or isinstance(value, Tensor):
        return False
    return any("Cache" in kind.__name__ for kind in type(value).__mro__)


def _parts_of(cache: Any) -> list[Any]:
    return [getattr(cache, part) for part in PARTS] if type(cache).__name__ == PAIR else [cache]


def _emptied(value: Any) -> Any:
    """Return an empty cache of the same kind; what is none stays itself."""
    if not _is_cache(value):
        return value
    return type(value)(*map(_emptied, _parts_of(value))) if type(value).__name__ == PAIR else type(value)()
