"""Finds, by measurement, which activations a training job should recompute so that its batch fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

__all__ = ["__version__", "apply"]

__version__ = "0.1.0"


def apply(model: Any, plans: str | os.PathLike[str] | None = None) -> None:
    """Recompute in a PyTorch model what a file of plans says, from its first training call on.

    That call runs the model forward once more before it, to see what it computes; training goes on bit for bit as
    without.

    Args:
        model: The ``torch.nn.Module``, as it is called in training; one in ``DistributedDataParallel`` may be given
            with it.
        plans: The file, as ``autorecompute emit`` and ``tune`` write it. Without one the environment names it
            (``AUTORECOMPUTE_PLANS``), and where that names none, nothing is done: a script may call this and be tuned
            all the same.

    Raises:
        UsageError: the file cannot be read, or was measured on another model.
    """
    from autorecompute.backends.registry import apply_plans

    apply_plans(model, plans)
