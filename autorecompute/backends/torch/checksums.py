"""A sum over the bits of a tensor: exact, the same in any order, and without memory of its own."""

from __future__ import annotations

import torch
from torch import Tensor

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes."""

_WORD = 8
_FEW = 2**16
"""Elements that are summed at once where they do not make up words: torch copies them to integers of 64 bits."""


def bits_of(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's bits as one number of 64 bits on its device; it wraps around.

    Two tensors are compared by it if they lie in memory alike: where it can be, eight bytes are one number.
    """
    plain = real_of(tensor)
    if not plain.is_contiguous():
        plain = plain[tuple([slice(0, 1) if stride == 0 else slice(None) for stride in plain.stride()])]
        plain = plain.permute(sorted(range(plain.dim()), key=plain.stride, reverse=True))
    if plain.is_contiguous():
        plain = plain.view(-1)
    in_word = _WORD // plain.element_size()
    whole = plain.shape[-1] // in_word * in_word if plain.dim() == 1 else None
    try:
        total = plain[:whole].view(torch.int64).sum()
    except RuntimeError:  # words would begin within elements
        return _sum(plain)
    return total if whole is None or whole == plain.shape[0] else total + _sum(plain[whole:])


def real_of(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor as they lie in memory: those of ``conj`` and ``imag`` may be marked as others."""
    plain = tensor.detach()
    plain = torch._neg_view(plain) if plain.is_neg() else plain
    plain = plain.conj() if plain.is_conj() else plain
    return torch.view_as_real(plain) if plain.is_complex() else plain


def _sum(tensor: Tensor) -> Tensor:
    elements = tensor.view(_INTEGERS[tensor.element_size()])
    rows = max(1, _FEW * elements.shape[0] // max(1, elements.numel())) if elements.dim() else 1
    parts = elements.split(rows) if elements.dim() else (elements,)
    return torch.stack([part.sum(dtype=torch.int64) for part in parts]).sum()


def checksum(tensor: Tensor) -> int:
    """Return the sum as a number. On a card it waits for what is queued."""
    return int(bits_of(tensor))
