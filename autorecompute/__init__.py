"""Finds, by measurement, which activations a training job should recompute so that its batch fits in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

__all__ = ["__version__", "apply", "auto"]

__version__ = "1.0.0"


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


def auto(  # noqa: PLR0913  (what a user may say)
    model: Any,
    optimizer: Any = None,
    memory_limit: str | int | None = None,
    *,
    study: str | None = None,
    tuning_steps: int = 40,
    longest: int | None = None,
) -> None:
    """Tune the training that begins now in its own first steps, and leave the best config on.

    The search runs beside it in a process of its own. Whatever fails there, or stands in its way, leaves the training
    as it is, with a warning in the log ``autorecompute``. What is on from which step on is told there, too. Called once
    more, for another model or the same, it ends the search before and begins anew. In a process that a tuner or
    ``autorecompute run`` has started it does nothing.

    Args:
        model: The ``torch.nn.Module`` that trains; or, alone, a Trainer of transformers or Lightning, which is given
            the callback (``TrainerCallback``, ``LightningCallback``) that begins with its optimizer.
        optimizer: What trains it: a torch optimizer, or several in a list.
        memory_limit: What the peak may reach: bytes, or a text such as ``"40GiB"``. Without it, what the device has to
            give.
        study: Name of the study in ``./studies``; without it, one is made of the script and of what it trains.
        tuning_steps: So many steps are spent on trials at most, and 5 % of those that a scheduler lets expect.
        longest: Tokens of the longest sample that will come, where batches differ in length. Trials are then steps of
            that length beside the training, and shorter batches get configs of their own.

    Raises:
        UsageError: the arguments do not make sense: a size without a unit, an optimizer of another model.
    """
    from autorecompute.integrations import add_callback
    from autorecompute.worker.training import tune_from_here

    options: dict[str, Any] = {
        "memory_limit": memory_limit,
        "study": study,
        "tuning_steps": tuning_steps,
        "longest": longest,
    }
    if optimizer is not None or not add_callback(model, **options):
        tune_from_here(model, optimizer, **options)


_CALLBACKS = {"TrainerCallback": "trainer", "LightningCallback": "lightning"}


def __getattr__(name: str) -> Any:
    """Return ``TrainerCallback`` or ``LightningCallback``; their libraries are imported now, and not before."""
    if name not in _CALLBACKS:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.integrations.{_CALLBACKS[name]}"), name)
