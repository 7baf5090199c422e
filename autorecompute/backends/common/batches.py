"""The batch of a call of the model, and fewer samples of it."""

from __future__ import annotations

from collections import Counter
from typing import Any

COMPARED_SAMPLES = 2
"""So few samples of a batch are compared: the batch need not fit without recompute."""


def observe_batch(values: list[Any]) -> int:
    """Samples in one call of the model: the first dimension that most of its tensors share; 0 without any tensor."""
    sizes = Counter(int(value.shape[0]) for value in _tensors(values) if value.dim() > 0)
    return sizes.most_common(1)[0][0] if sizes else 0


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def slice_batch(value: Any, batch: int, samples: int = COMPARED_SAMPLES) -> Any:
    """The same structure with every tensor of ``batch`` rows cut to its first few."""
    import torch

    if isinstance(value, torch.Tensor):
        return value[:samples] if value.dim() > 0 and value.shape[0] == batch else value
    if isinstance(value, dict):
        return {key: slice_batch(item, batch, samples) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(slice_batch(item, batch, samples) for item in value)
    return value
