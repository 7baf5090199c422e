"""Whether a script goes through several batches for a step of its optimizer, read before its first step.

Gradients are then alive while the model runs, and the peak is theirs too. Libraries say how many batches they take. A
loop of the script's own is read: its optimizer steps behind a test with ``%``, or after a loop of its own.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import sys
from typing import TYPE_CHECKING, Any, Final

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from autorecompute.backends.torch.callers import calling_frames, local_of
from autorecompute.backends.torch.source import UNKNOWN, codes, end, inside, scopes, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

_TOLD: Final = {
    "transformers.": ("args", "gradient_accumulation_steps"),
    "lightning.": ("trainer", "accumulate_grad_batches"),
    "pytorch_lightning.": ("trainer", "accumulate_grad_batches"),
}
"""What objects of a library hold, by the beginning of their modules' names."""


def accumulates_gradients() -> bool:
    """Tell whether who is calling a model now calls it several times for a step of the optimizer."""
    frames = list(calling_frames())
    if told := list(_told_by(frames)):
        return max(told) > 1
    read = (_reads(frame, frames[:number]) for number, frame in enumerate(frames))
    return _accelerated() > 1 or next((found for found in read if found is not None), False)


def _told_by(frames: Sequence[FrameType]) -> Iterator[int]:
    """Yield how many batches each object of a library that is at work takes for a step."""
    for frame in frames:
        name = str(frame.f_globals.get("__name__"))
        for beginning, (holder, attribute) in _TOLD.items():
            if name.startswith(beginning):
                with contextlib.suppress(RuntimeError):  # a module of Lightning's that has no trainer
                    count = getattr(getattr(local_of(frame, "self"), holder, None), attribute, None)
                    if isinstance(count, int):
                        yield count


def _accelerated() -> int:
    """Return how many batches Accelerate was told to take for a step."""
    state = sys.modules.get("accelerate.state")
    return int(state.GradientState().num_steps) if state is not None else 1


def _reads(frame: FrameType, called: Sequence[FrameType]) -> bool | None:
    """Return what the code around the line that runs in a frame says; ``None`` where it has no step of an optimizer.

    Args:
        frame: One of the frames that call the model.
        called: Those between it and the model.
    """
    line, inner = frame.f_lineno, None
    for scope in scopes(frame.f_code.co_filename, line):
        if steps := _steps(scope, frame):
            if inner is not None:
                return _repeats(inner, frame, called)
            return all(_is_at_times(step, scope, line, frame) for step in steps)
        inner = scope
    return None


def _steps(scope: ast.AST, frame: FrameType) -> list[ast.Call]:
    """Return the calls inside that have an optimizer step."""
    steps = (Optimizer, GradScaler)  # by its type: asked for its class, a proxy runs code of its own
    return [node for node in _calls(scope, "step") if issubclass(type(_holder(node, frame)), steps)]


def _calls(scope: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in inside(scope):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name:
            yield node


def _holder(call: ast.Call, frame: FrameType) -> Any:
    return value_of(call.func.value, frame) if isinstance(call.func, ast.Attribute) else UNKNOWN


def _is_at_times(step: ast.Call, scope: ast.AST, line: int, frame: FrameType) -> bool:
    """Tell whether a step comes once in several rounds, and the line that runs in each."""
    for node in ast.walk(scope):
        if isinstance(node, ast.If) and _counts(node.test, scope, frame):
            is_inside = node.lineno <= step.lineno <= end(node) and not node.lineno <= line <= end(node)
            goes_on = any(isinstance(part, ast.Continue) for part in node.body)
            if is_inside or (goes_on and line < node.lineno < step.lineno):
                return True
    return False


def _counts(test: ast.expr, scope: ast.AST, frame: FrameType) -> bool:
    """Tell whether a test holds once in several rounds: it has a remainder, or a name that is made of one."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    made = [node.value for node in ast.walk(scope) if isinstance(node, ast.Assign) and _names(node) & names]
    parts = [part for whole in (test, *made) for part in ast.walk(whole)]
    rests = [part.right for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
    return any(_is_several(rest, frame) for rest in rests)


def _names(assignment: ast.Assign) -> set[str]:
    return {target.id for target in assignment.targets if isinstance(target, ast.Name)}


def _repeats(loop: ast.AST, frame: FrameType, called: Sequence[FrameType]) -> bool:
    """Tell whether a loop that goes back through the model has several rounds: unless it is over a range of one."""
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[count])) if not _is_several(count, frame):
            return False
    run = itertools.chain((one.f_code for one in called), codes(loop, frame))
    names = [set(code.co_names) for code in run]  # what steps as well takes whole steps
    return any(_calls(loop, "backward")) or any("backward" in one and "step" not in one for one in names)


def _is_several(count: ast.expr, frame: FrameType) -> bool:
    """Tell whether a number is more than one, or nobody knows it."""
    value = value_of(count, frame)
    return not isinstance(value, int) or value > 1
