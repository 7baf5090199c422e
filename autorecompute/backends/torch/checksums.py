"""A sum over the bits of a tensor: exact, and the same in any order."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes; their sum is one of 64 bits, which may wrap around."""


def _bits_of(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor's elements as integers, in the same memory."""
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return plain.detach().view(_INTEGERS[plain.element_size()])


def checksum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bits. On a card it waits for what is queued."""
    return int(_bits_of(tensor).sum(dtype=torch.int64))
