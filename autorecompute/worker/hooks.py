"""The public points of torch at which a training script is followed."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def follow_steps(on_step: Callable[[], None]) -> None:
    """Calls ``on_step`` after each step of any optimizer."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: on_step())


def follow_losses(on_loss: Callable[[Any], None]) -> None:
    """Calls ``on_loss`` with each scalar tensor that ``backward`` is called on."""
    import torch

    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def backward_and_tell(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() == 1:
            on_loss(tensor.detach())
        return backward(tensor, *args, **kwargs)

    torch.Tensor.backward = backward_and_tell
