"""Callbacks of other libraries' trainers, thin over ``autorecompute.auto``; none of them is imported before its use."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Any

from autorecompute.errors import UsageError
from autorecompute.worker.training import require_options, tune_from_here

_TRAINERS = {
    ("trainer", "TrainerCallback"): ("transformers.trainer",),
    ("lightning", "LightningCallback"): ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"),
}
"""Each callback, by its module here and its name, and the modules that define the trainer which takes it."""

_LOG = logging.getLogger("autorecompute")


class AutoCallback:
    """Tune the training of a trainer in its own first steps, as ``autorecompute.auto`` does.

    Args:
        memory_limit: What the peak may reach: bytes, or a text such as ``"40GiB"``. Without it, what the device has to
            give.
        study: Name of the study in ``./studies``; without it, one is made of the script and of what it trains.
        tuning_steps: So many steps are spent on trials at most, and 5 % of those that a scheduler lets expect.
        longest: Tokens of the longest sample that will come, where batches differ in length.

    Raises:
        UsageError: an argument does not make sense, such as a size without a unit.
    """

    def __init__(
        self,
        memory_limit: str | int | None = None,
        *,
        study: str | None = None,
        tuning_steps: int = 40,
        longest: int | None = None,
    ) -> None:
        require_options(memory_limit, tuning_steps, longest)
        super().__init__()
        self._options: dict[str, Any] = {
            "memory_limit": memory_limit,
            "study": study,
            "tuning_steps": tuning_steps,
            "longest": longest,
        }

    def _begin(self, model: Any, optimizers: Any) -> None:
        try:
            tune_from_here(model, optimizers, **self._options)
        except UsageError as error:  # the trainer chose the optimizer, and the user cannot give another one
            _LOG.warning("the training goes on without autorecompute: %s", error)


def add_callback(trainer: Any, **options: Any) -> bool:
    """Give a trainer its callback; tell whether it is a trainer of a library that has one."""
    for (module, name), places in _TRAINERS.items():
        kinds = tuple(sys.modules[place].Trainer for place in places if place in sys.modules)
        if kinds and isinstance(trainer, kinds):
            callback = getattr(import_module(f"{__name__}.{module}"), name)(**options)
            if hasattr(trainer, "add_callback"):
                trainer.add_callback(callback)
            else:  # Lightning's
                trainer.callbacks.append(callback)
            return True
    return False
