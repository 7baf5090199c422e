"""Heads that return logits which are not made."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from autorecompute.backends.torch.find.refusals import is_transformed
from autorecompute.backends.torch.find.structure import is_named
from autorecompute.backends.torch.switch.chunks import STEPS, Autocast, Origin, Recipe, Term
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.errors import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn import Linear
    from torch.optim import Optimizer


class Head:
    """Has one ``nn.Linear`` return logits that are not made; an ``Around`` for it.

    Attributes:
        made: Number of calls whose logits were made all the same, as something else than a loss looked at them.
        is_tried: True while this package runs the model for itself: what it looks at is not counted.
    """

    def __init__(self, path: str, *, is_tried: bool = False) -> None:
        self.path, self.made, self.is_tried = path, 0, is_tried
        STEPS.begin()
        _hide_from_compiler()
        self._is_kept, self._called = False, list[Origin]()

    def count_made(self) -> None:
        """Note that the logits of a call are made."""
        if self.is_tried:
            return
        self.made += 1
        if self.made == 1:
            told = f"the logits of {self.path} are made, and take memory: something else than a loss uses them"
            log(logging.WARNING, told)

    def keep_from_now(self) -> None:
        """Make logits before each step of the optimizer from now on: some were looked at behind one."""
        if not self._is_kept:
            self._is_kept = True
            register_optimizer_step_pre_hook(torch.compiler.disable(self._keep))
            log(
                logging.WARNING,
                f"the logits of {self.path} are used after optimizer.step(): these are made with the new weight. From "
                "the next step on they are made before it, and take memory",
            )

    def _keep(self, optimizer: Optimizer, *_: Any) -> None:
        self._called = [origin for origin in self._called if not origin.keep(optimizer)]

    def __call__(self, forward: Callable[..., Any], module: Linear, /, *args: Any, **kwargs: Any) -> Any:
        """Call the module, or return its logits unmade in training."""
        hidden = args[0] if len(args) == 1 and not kwargs else None
        if hidden is None or not module.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        weight, bias = module.weight, module.bias  # once: what makes them may count its calls
        if not _can_wait(hidden, weight):
            return forward(*args, **kwargs)
        autocast = Autocast.of_now(hidden.device.type)
        dtype = autocast.dtype if autocast.is_on and hidden.dtype != torch.float64 else hidden.dtype
        if not autocast.is_on and weight.dtype != dtype:
            return forward(*args, **kwargs)
        terms = [Term(hidden, weight, bias)]
        origin = Origin.of(self.path, terms, self.count_made, self.keep_from_now)
        logits = Logits.of(terms, Recipe(dtype, hidden.device.type), dtype, hidden.dim() - 1, origin)
        if self._is_kept:
            self._called.append(origin)
        return logits


@functools.cache
def _hide_from_compiler() -> None:
    """Have a compiled loss that is given logits break its graph there: it would trace how they are made."""
    Logits.answer = staticmethod(torch.compiler.disable(Logits.answer))


def _can_wait(hidden: Any, weight: Tensor) -> bool:
    is_known = isinstance(hidden, Tensor) and not isinstance(hidden, Logits) and hidden.dim() > 1
    is_spread = any(is_named(one, "DTensor", "torch.distributed") for one in (hidden, weight))
    return is_known and not is_spread and not is_transformed() and (hidden.requires_grad or weight.requires_grad)
