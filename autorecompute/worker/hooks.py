"""Hooks on optimizers, and the steps that are expected of them."""

from __future__ import annotations

import functools
import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import weakref
    from collections.abc import Callable, Iterable


UNSCALED = "_autorecompute_unscaled"  # attribute of a scaled loss for the loss before


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


def reporting_failures(call: Callable[..., Any], on_failure: Callable[[Exception], None]) -> Callable[..., Any]:
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
    Steps of a kind of optimizer that existed before are followed without that. A step that the script compiles breaks
    its graph here, as the steps of torch's own optimizers do by themselves.
    """
    from torch.amp import GradScaler
    from torch.compiler import disable
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook

    on_skip, on_failure = disable(on_skip), disable(on_failure)
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

    ends = ExitStack()
    ends.callback(register_optimizer_step_post_hook(disable(note_and_tell)).remove)
    ends.callback(put_in(GradScaler, "step", step_and_tell))
    # Each kind of optimizer gets its steps from here, at its first instance; hooks on steps are not told of errors.
    telling = staticmethod(lambda own: with_hooks(reporting_failures(own, on_failure)))
    ends.callback(put_in(Optimizer, "profile_hook_step", telling))
    return ends.close


def follow_optimizers(on_made: Callable[[], None]) -> Callable[[], None]:
    """Call ``on_made`` whenever an optimizer gets parameters."""
    from torch.optim import Optimizer

    add = Optimizer.add_param_group

    @functools.wraps(add)
    def add_and_tell(optimizer: Any, *args: Any, **kwargs: Any) -> None:
        add(optimizer, *args, **kwargs)
        on_made()

    return put_in(Optimizer, "add_param_group", add_and_tell)


def follow_losses(on_loss: Callable[[Any, Any], None], on_failure: Callable[[Exception], None]) -> Callable[[], None]:
    """Call ``on_loss`` with each scalar tensor that ``backward`` is called on, and its value before a GradScaler.

    What a backward pass raises is told to ``on_failure`` before the script gets it.
    """
    import torch

    on_loss, on_failure = torch.compiler.disable(on_loss), torch.compiler.disable(on_failure)
    backward, scale = torch.Tensor.backward, torch.amp.GradScaler.scale
    run_and_tell = reporting_failures(backward, on_failure)

    @functools.wraps(backward)
    def backward_and_tell(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if tensor.numel() == 1:
            on_loss(tensor, getattr(tensor, UNSCALED, tensor).detach())
        return run_and_tell(tensor, *args, **kwargs)

    @functools.wraps(scale)
    def scale_and_note(scaler: Any, outputs: Any) -> Any:
        scaled = scale(scaler, outputs)
        if isinstance(scaled, torch.Tensor):
            # The scale changes as training goes on, and a scaled loss may overflow where no gradient does.
            setattr(scaled, UNSCALED, outputs.detach())
        return scaled

    ends = ExitStack()
    ends.callback(put_in(torch.Tensor, "backward", backward_and_tell))
    ends.callback(put_in(torch.amp.GradScaler, "scale", scale_and_note))
    return ends.close


TOTALS = ("total_steps", "T_max", "total_iters")  # attributes of torch's schedulers that say how long they are
KEYWORD = "num_training_steps"  # argument of Hugging Face's schedulers with the same
LEAST_STEPS = 2  # one does not tell a scheduler that goes by steps from one that goes by epochs


def follow_schedulers(schedulers: weakref.WeakSet[Any]) -> Callable[[], None]:
    """Add each scheduler that is made from now on to the set."""
    from torch.optim.lr_scheduler import LRScheduler, SequentialLR

    def note_all_of(kind: type) -> Callable[[], None]:
        make = kind.__init__  # type: ignore[misc]

        @functools.wraps(make)
        def make_and_note(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            make(scheduler, *args, **kwargs)
            schedulers.add(scheduler)
            schedulers.difference_update(_parts_of(scheduler))

        return put_in(kind, "__init__", make_and_note)

    ends = ExitStack()
    # A sequence does not call the constructor of its base class.
    for kind in (LRScheduler, SequentialLR):
        ends.callback(note_all_of(kind))
    return ends.close


def expected_steps(schedulers: Iterable[Any], steps: int) -> int | None:
    """Return the steps of the whole training, once so many have ended; ``None`` where no scheduler tells.

    One that has not gone along with the steps counts something else, epochs for instance.
    """
    if steps < LEAST_STEPS:
        return None
    told = [_length_of(scheduler) for scheduler in schedulers if scheduler.last_epoch >= steps - 1]
    return min((length for length in told if length is not None), default=None)


def _parts_of(scheduler: Any) -> list[Any]:
    """Return the parts that a sequence runs one after the other: each of them tells the length of its part alone."""
    return scheduler._schedulers if hasattr(scheduler, "_milestones") else []  # noqa: SLF001


def _length_of(scheduler: Any) -> int | None:
    if parts := _parts_of(scheduler):
        last = _length_of(parts[-1])
        return None if last is None else scheduler._milestones[-1] + last  # noqa: SLF001
    return None if _warms_up(scheduler) else _told_length(scheduler)


def _warms_up(scheduler: Any) -> bool:
    """Tell whether its end is not that of the training: a ``ConstantLR``, or a ``LinearLR`` that goes up."""
    start = getattr(scheduler, "start_factor", None)
    return hasattr(scheduler, "factor") if start is None else start < scheduler.end_factor


def _told_length(scheduler: Any) -> int | None:
    lambdas = [getattr(one, "keywords", {}) for one in getattr(scheduler, "lr_lambdas", ())]
    values = [getattr(scheduler, name, None) for name in TOTALS] + [keywords.get(KEYWORD) for keywords in lambdas]
    return next((value for value in values if isinstance(value, int) and value > 0), None)
