"""The callback of Lightning's Trainer, from the package that the script imports."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from autorecompute.integrations import AutoCallback

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
else:
    is_older = "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules
    Callback = import_module("pytorch_lightning" if is_older else "lightning.pytorch").Callback


class LightningCallback(AutoCallback, Callback):  # type: ignore[misc]  # mypy does not read the library
    """Tune what Lightning trains: ``lightning.Trainer(callbacks=[autorecompute.LightningCallback("24GiB")])``.

    See ``AutoCallback`` for the arguments.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin, when the optimizers are made."""
        self._begin(pl_module, trainer.optimizers)
