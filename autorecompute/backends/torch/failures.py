"""What an exception of a script that trains on PyTorch means."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import CheckpointError

from autorecompute.backends.common.failures import describe_out_of_memory, is_out_of_memory, last_line
from autorecompute.backends.torch.refusals import RefusedModelError
from autorecompute.errors import AutorecomputeError, chain_of
from autorecompute.measurement import Outcome
from autorecompute.units import MIB

NOTHING_TRAINED = (
    "No module that holds the parameters of a torch optimizer was called in training mode. Call the model itself, "
    "model(inputs), rather than a method of it, and after the optimizer was made. Where torch.compile runs a function "
    "around that call, give it the model instead."
)

TRANSFORMED = (
    "The model is called under transforms of torch.func, such as vmap and grad, which have no backward pass that could "
    "recompute. Tune a step that calls model(inputs) and loss.backward(), or train without recompute."
)

NO_HANDLE = ("CUBLAS_STATUS_NOT_INITIALIZED", "CUDNN_STATUS_NOT_INITIALIZED")
"""What CUDA's libraries say where they find no memory for themselves, and of other faults as well."""

HANDLE_BYTES = 256 * MIB
"""They find it where so much is free outside of the allocator."""


def classify(error: BaseException) -> tuple[Outcome, str]:
    """Return the outcome that an exception stands for, and a sentence about it."""
    links = chain_of(error)
    text = "\n".join(str(link) for link in links)
    if isinstance(error, torch.cuda.OutOfMemoryError) or is_out_of_memory(error, text) or _found_no_room(text):
        return Outcome.OOM, describe_out_of_memory(error)
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
    return Outcome.SCRIPT_ERROR, f"{type(error).__name__}: {last_line(error)}"


def _found_no_room(text: str) -> bool:
    """Tell whether one of CUDA's libraries could not begin, on a card that is full."""
    if not any(known in text for known in NO_HANDLE) or not torch.cuda.is_initialized():
        return False
    try:
        free_bytes, _ = torch.cuda.mem_get_info()
    except RuntimeError:  # a fault of a kernel is told by every later call
        return False
    return bool(free_bytes < HANDLE_BYTES)
