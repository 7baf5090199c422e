"""The callback of transformers' Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers

from autorecompute.integrations import AutoCallback

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer


class TrainerCallback(AutoCallback, transformers.TrainerCallback):  # type: ignore[misc]  # mypy does not read the library
    """Tune what a Trainer trains: ``Trainer(callbacks=[autorecompute.TrainerCallback(memory_limit="24GiB")])``.

    See ``AutoCallback`` for the arguments.
    """

    def on_train_begin(
        self, args: Any, state: Any, control: Any, *, model: Module, optimizer: Optimizer, **kwargs: Any
    ) -> None:
        """Begin, when the Trainer has made its optimizer."""
        del args, state, control, kwargs
        self._begin(model, optimizer)
