"""Compares gradients of two runs of the same step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autorecompute.measurement import GradientCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TOLERANCES = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}
"""Largest difference, relative to the largest gradient of a parameter, that kernels with unordered sums may leave."""

PART = 2**22
"""So many numbers are compared at once: 32 MiB as doubles."""


def compare(
    named: Sequence[tuple[str, Any]], expected: Sequence[Sequence[Any]], found: Iterable[Sequence[Any]]
) -> GradientCheck:
    """Whether gradients agree within the tolerance of their type.

    Args:
        named: The parameters with their names.
        expected: For each step, the gradient of each parameter without recompute; ``None`` where it has none.
        found: The same with recompute, where it is asked for.
    """
    worst, parameter, dtype = _worst_difference(named, expected, found)
    agrees = worst <= TOLERANCES.get(dtype, 0.0)
    return GradientCheck(agrees=agrees, worst=worst, parameter="" if agrees else parameter, steps=len(expected))


def scalar_of(outputs: Any) -> Any:
    """One number that all differentiable outputs weigh in; a loss among them is taken alone."""
    tensors = [tensor for tensor in _flatten(outputs) if tensor.requires_grad]
    losses = [tensor for tensor in tensors if tensor.numel() == 1]
    return losses[0].sum() if losses else sum((tensor.float() * _weights_like(tensor)).sum() for tensor in tensors)


def _weights_like(tensor: Any) -> Any:
    # A plain sum has no gradient behind a softmax: uneven weights have one everywhere.
    import torch

    return torch.arange(tensor.numel(), device=tensor.device, dtype=torch.float32).cos().view_as(tensor)


def _flatten(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _flatten(item)] if isinstance(value, list | tuple) else []


def relative_difference(expected: Any, found: Any) -> float:
    """The largest difference of two gradients, relative to the largest entry of the first; infinite where one is none.

    Both are compared in double precision, so that a difference is not rounded away, and in parts, as doubles of a large
    gradient may not fit. Not a number is infinitely far off, and so is a gradient where there should be none.

    Args:
        expected: A tensor, or ``None``; it may be on another device.
        found: The other one.
    """
    import torch

    if expected is None or found is None:
        return 0.0 if expected is found else math.inf
    if expected.layout is not torch.strided:  # that of a sparse embedding
        expected, found = expected.to_dense(), found.to_dense()
    if expected.shape != found.shape:
        return math.inf
    parts = list(zip(expected.flatten().split(PART), found.flatten().split(PART), strict=True))
    differing = [(one, other) for one, other in parts if not torch.equal(one.to(other.device), other)]
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = 0.0
    for one, other in differing:
        off = (one.to(other.device).to(wide) - other.to(wide)).abs().max().item()
        if not math.isfinite(off):
            return math.inf
        difference = max(difference, off)
    scale = max((one.to(wide).abs().max().item() for one, _ in parts), default=0.0) if differing else 1.0
    return difference / scale if 0 < scale < math.inf else math.inf


def _worst_difference(
    named: Sequence[tuple[str, Any]], expected: Sequence[Sequence[Any]], found: Iterable[Sequence[Any]]
) -> tuple[float, str, str]:
    """The largest relative difference, the parameter it is in, and that parameter's type."""
    differences = [
        (relative_difference(theirs, ours), name, str(parameter.dtype).removeprefix("torch."))
        for step_expected, step_found in zip(expected, found, strict=True)
        for (name, parameter), theirs, ours in zip(named, step_expected, step_found, strict=True)
    ]
    return max(differences, default=(0.0, "", "float32"))
