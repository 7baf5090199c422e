"""The public points of torch at which a training script is followed. Each function here gives one that ends it."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

UNSCALED = "_autorecompute_unscaled"
"""What a scaled loss carries along: itself before it was scaled."""


def put_in(owner: Any, name: str, replacement: Any) -> Callable[[], None]:
    """Put a function in the place of another; what it gives puts that back, if nobody has replaced ours since."""
    original = inspect.getattr_static(owner, name)  # a static method as one
    setattr(owner, name, replacement)

    def put_back() -> None:
        if inspect.getattr_static(owner, name) is replacement:
            setattr(owner, name, original)

    return put_back


def is_in_backward() -> bool:
    """Tell whether this thread runs a hook of a backward pass, as one that steps an optimizer."""
    from torch._C import _current_graph_task_id  # torch's own checkpoint asks for it, too

    return bool(_current_graph_task_id() != -1)


def telling(call: Callable[..., Any], on_failure: Callable[[Exception], None]) -> Callable[..., Any]:
    """Return the call, which tells ``on_failure`` what it raises before its caller gets that."""

    @functools.wraps(call)
    def call_and_tell(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            on_failure(error)
            raise

    return call_and_tell


def follow_steps(
    on_step: Callable[[Any], None], on_skip: Callable[[Any], None], on_failure: Callable[[Exception], None]
) -> Callable[[], None]:
    """Call ``on_step`` with each optimizer after its step, and ``on_skip`` where a GradScaler keeps it from one.

    What a step raises is told to ``on_failure`` before the script gets it: the first one makes an optimizer's state.
    Steps of a kind of optimizer that existed before are followed without that.
    """
    from torch.amp import GradScaler
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook

    latest: list[Any] = []
    step, with_hooks = GradScaler.step, Optimizer.profile_hook_step

    def note_and_tell(optimizer: Any, *_: Any) -> None:
        latest[:] = [optimizer]
        on_step(optimizer)

    @functools.wraps(step)
    def step_and_tell(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        latest.clear()
        result = step(scaler, optimizer, *args, **kwargs)
        if not latest:
            on_skip(optimizer)
        return result

    handle = register_optimizer_step_post_hook(note_and_tell)
    put_back = [
        put_in(GradScaler, "step", step_and_tell),
        # Each kind of optimizer gets its steps from here, at its first instance; hooks on steps are not told of errors.
        put_in(Optimizer, "profile_hook_step", staticmethod(lambda own: with_hooks(telling(own, on_failure)))),
    ]

    def end() -> None:
        handle.remove()
        for put in put_back:
            put()

    return end


def follow_optimizers(on_made: Callable[[], None]) -> Callable[[], None]:
    """Call ``on_made`` whenever an optimizer gets parameters."""
    from torch.optim import Optimizer

    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_and_tell(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        add(optimizer, *args, **kwargs)
        on_made()

    return put_in(Optimizer, "add_param_group", add_and_tell)


def follow_losses(on_loss: Callable[[Any], None], on_failure: Callable[[Exception], None]) -> Callable[[], None]:
    """Call ``on_loss`` with each scalar tensor that ``backward`` is called on, as it was before a GradScaler.

    What a backward pass raises is told to ``on_failure`` before the script gets it.
    """
    import torch

    backward, scale = torch.Tensor.backward, torch.amp.GradScaler.scale
    run_and_tell = telling(backward, on_failure)

    @functools.wraps(backward)
    def backward_and_tell(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() == 1:
            on_loss(getattr(tensor, UNSCALED, tensor).detach())
        return run_and_tell(tensor, *args, **kwargs)

    @functools.wraps(scale)
    def scale_and_note(scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if isinstance(scaled, torch.Tensor):
            # The scale changes as training goes on, and a scaled loss may overflow where no gradient does.
            setattr(scaled, UNSCALED, outputs.detach())
        return scaled

    put_back = [
        put_in(torch.Tensor, "backward", backward_and_tell),
        put_in(torch.amp.GradScaler, "scale", scale_and_note),
    ]

    def end() -> None:
        for put in put_back:
            put()

    return end
