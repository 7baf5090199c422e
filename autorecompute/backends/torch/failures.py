"""What an exception of a script that trains on PyTorch means."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import CheckpointError

from autorecompute.backends.torch.detection import RefusedModelError
from autorecompute.errors import AutorecomputeError
from autorecompute.measurement import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

OUT_OF_MEMORY_TEXTS = ("out of memory", "bad_alloc", "can't allocate memory", "ALLOC_FAILED")
"""Seen from torch's allocators, the C++ runtime and cuBLAS."""

CREATE_GRAPH = "create_graph=True"


def classify(error: BaseException) -> tuple[Outcome, str]:
    """The outcome that an exception stands for, and a sentence about it."""
    links = list(_chain(error))
    text = "\n".join(str(link) for link in links)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(known in text for known in OUT_OF_MEMORY_TEXTS):
        return Outcome.OOM, f"out of memory: {_last_line(error)}"
    for link in links:
        if isinstance(link, RefusedModelError):
            return Outcome.EXPORT_ERROR, f"The model cannot be recomputed: {link}"
        if isinstance(link, AutorecomputeError):
            return Outcome.SCRIPT_ERROR, str(link)
        if isinstance(link, CheckpointError):
            return Outcome.SCRIPT_ERROR, (
                "A recomputed module did not save the same tensors when it ran again: what it computes depends on more "
                "than its inputs."
            )
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {_last_line(error)}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from or in the handling of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
