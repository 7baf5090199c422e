"""The batch of a call of the model, and fewer samples of it."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autorecompute.measurement import GradientCheck

COMPARED_SAMPLES = 2
"""So few samples of a batch are compared: the batch need not fit without recompute."""

STATE_DIMENSIONS = 3
"""The state of a recurrent layer has so many: layers, samples, features."""


def observe_batch(values: list[Any]) -> int:
    """Sample in one call of the model: the first dimension that most of its arguments share; 1 without any tensor.

    Of an argument that holds several tensors, such as the state of a recurrent layer, the size of most counts.
    """
    sizes = [size for value in values if (size := _most_common(_sizes(value)))]
    return _most_common(sizes) or 1


def _most_common(sizes: list[int]) -> int:
    return Counter(sizes).most_common(1)[0][0] if sizes else 0


def _sizes(value: Any) -> list[int]:
    import torch

    if isinstance(value, torch.Tensor):
        return [int(value.shape[0])] if value.dim() > 0 else []
    return [size for item in _parts(value) for size in _sizes(item)]


def _parts(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return []


def slice_batch(value: Any, batch: int, samples: int = COMPARED_SAMPLES) -> Any:
    """Return the same structure with every tensor of ``batch`` rows cut to its first few."""
    import torch

    def cut(item: Any) -> Any:
        return slice_batch(item, batch, samples)

    if isinstance(value, torch.Tensor):
        return _cut_tensor(value, batch, samples)
    if isinstance(value, MutableMapping):
        return _cut_mapping(value, cut)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(cut, value))
    if isinstance(value, list | tuple):
        return type(value)(map(cut, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(other, field.name, cut(getattr(value, field.name, None)))  # it may be frozen
        return other
    return value


def on_few_samples(
    compare: Callable[[Any, Any], GradientCheck],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    batch: int,
    classify: Callable[[BaseException], tuple[Outcome, str]],
) -> GradientCheck:
    """Compare on few samples of a call; on all of them where the model cannot be called with few.

    A mask that has as many rows as there are samples is cut with them, and a model may know how many samples there are.

    Args:
        compare: Compares gradients of a call with these arguments.
        args: The positional arguments of the call.
        kwargs: Its keyword arguments.
        batch: How many samples it has.
        classify: What an exception means: where few samples run out of memory, all do.
    """
    few = slice_batch(tuple(args), batch), slice_batch(dict(kwargs), batch)
    try:
        return compare(*few)
    except Exception as error:
        if classify(error)[0] is Outcome.OOM:
            raise
        return compare(tuple(args), dict(kwargs))


def _cut_mapping(value: MutableMapping[Any, Any], cut: Callable[[Any], Any]) -> MutableMapping[Any, Any]:
    """Return a copy of the same class: models read the entries of some as attributes."""
    other = copy.copy(value)
    for key, item in value.items():
        other[key] = cut(item)
    return other


def _cut_tensor(value: Any, batch: int, samples: int) -> Any:
    import torch

    if value.layout is not torch.strided or value.is_nested:  # the edges of a graph
        return value
    if value.dim() > 0 and value.shape[0] == batch:
        return value[:samples]
    if value.dim() == STATE_DIMENSIONS and value.shape[1] == batch:
        return value[:, :samples].contiguous()  # as kernels of recurrent layers want it
    return value
