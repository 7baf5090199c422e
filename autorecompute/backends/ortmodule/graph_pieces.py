"""What symbolic functions put into an exported graph again and again."""

from __future__ import annotations

from typing import Any

import torch
from torch.onnx import symbolic_helper as helper

LAST = 2**63 - 1
"""Where ONNX ends a slice that goes to the end."""


def constant(g: Any, value: Any) -> Any:
    """Return a tensor that is always the same."""
    return g.op("Constant", value_t=value)


def slice_shape(g: Any, tensor: Any, start: int, end: int) -> Any:
    """Return the sizes of some of a tensor's dimensions."""
    bounds = (constant(g, torch.tensor([place])) for place in (start, end))
    return g.op("Slice", g.op("Shape", tensor), *bounds)


def zero_like(g: Any, tensor: Any) -> Any:
    """Return a zero of the tensor's type, without dimensions."""
    return constant(g, torch.zeros((), dtype=dtype_of(tensor)))


def dtype_of(tensor: Any) -> Any:
    """Return the tensor's type, as torch has it."""
    return helper._try_get_scalar_type(tensor).dtype()  # noqa: SLF001
