"""What an exception of a script that trains on PyTorch means."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import CheckpointError

from autorecompute.backends.common.failures import describe_out_of_memory, is_out_of_memory, last_line
from autorecompute.backends.torch.refusals import RefusedModelError
from autorecompute.errors import AutorecomputeError, chain_of
from autorecompute.measurement import Outcome

NOTHING_TRAINED = (
    "No module that holds the parameters of a torch optimizer was called in training mode. Call the model itself, "
    "model(inputs), rather than a method of it, and after the optimizer was made. Where torch.compile runs a function "
    "around that call, give it the model instead."
)


def classify(error: BaseException) -> tuple[Outcome, str]:
    """The outcome that an exception stands for, and a sentence about it."""
    links = chain_of(error)
    text = "\n".join(str(link) for link in links)
    if isinstance(error, torch.cuda.OutOfMemoryError) or is_out_of_memory(error, text):
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
