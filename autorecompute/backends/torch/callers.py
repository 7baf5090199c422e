"""What the code that calls something says about it, read from that code's own instructions."""

from __future__ import annotations

import ast
import dis
import functools
import inspect
import linecache
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import CodeType, FrameType

    from torch.nn import Module

_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_BACKWARD, _FORWARD = "backward", "forward"
_MODULE = "self"  # what a module's forward is given first
_SUMS = {"add", "add_", "sub", "sub_", "subtract"}
_LIGHTNING_STEP = "lightning.pytorch.loops.optimization.automatic", "pytorch_lightning.loops.optimization.automatic"


def calling_frames() -> Iterator[FrameType]:
    """Yield the frames that are neither torch's nor ours, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            yield frame
        frame = frame.f_back


def calling_frame() -> FrameType | None:
    """Return the innermost of them; ``None`` where there is none."""
    return next(calling_frames(), None)


def is_in_autograd_function() -> bool:
    """Tell whether this runs in the forward of an autograd function in Python, without gradients.

    A module that is called there runs again in the backward pass, as in torch's reentrant checkpoint and in those of
    other libraries.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == _FORWARD and code.co_argcount and code.co_varnames[0] != _MODULE:
            context = local_of(frame, code.co_varnames[0])
            if isinstance(context, BackwardCFunction):
                return True
        frame = frame.f_back
    return False


def keeps_for_backward() -> bool:
    """Tell whether a module that is called now keeps anything, or will when a checkpoint runs it again."""
    return torch.is_grad_enabled() or is_in_autograd_function()


def local_of(frame: FrameType, name: str, default: Any = None) -> Any:
    """Return the value that a name has in a frame.

    Before Python 3.13 a function's frame goes on holding the copies of its variables that it was asked for once.
    """
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    variables = _variables_of(frame.f_code) if is_function else frozenset()
    if is_function and name not in variables:  # asked all the same, the frame would change a dict of the script's
        return default
    held = frame.f_locals
    value = held.get(name, default)
    # Where the script called locals(), the dict is its own, too: a third reference beside the frame's and ours.
    if is_function and type(held) is dict and sys.getrefcount(held) <= 3:  # noqa: PLR2004
        for variable in variables:  # what else is there is the script's: names that it made by exec
            held.pop(variable, None)
    return value


def _variables_of(code: CodeType) -> frozenset[str]:
    return frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))


def replica_around(module: Module) -> DistributedDataParallel | None:
    """Return the ``DistributedDataParallel`` whose call is calling the module now; ``None`` where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        caller = local_of(frame, "self")
        if isinstance(caller, DistributedDataParallel) and caller.module is module:
            return caller
        frame = frame.f_back
    return None


def keeps_gradients() -> bool:
    """Tell whether a model's caller frees the last step's gradients behind the forward pass, as Lightning does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).endswith(_LIGHTNING_STEP):
            return True
        frame = frame.f_back
    return False


def keeps_result(frame: FrameType | None) -> bool:
    """Tell whether the code that is calling a model now still has the result when its backward pass runs.

    That is so for ``logits = model(x)`` where the same function calls ``backward`` later. It is not so for
    ``criterion(model(x), y)``, nor in a function that returns the loss and takes the name with it.
    """
    return frame is not None and _BACKWARD in frame.f_code.co_names and _is_stored(frame)


def _is_stored(frame: FrameType) -> bool:
    """Tell whether the result of the call that runs in the frame, or an attribute other than its loss, gets a name."""
    following = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    after = next((one for one in following if one.opname != "LOAD_ATTR" or one.argval == "loss"), None)
    return after is not None and after.opname.startswith(("STORE_", "UNPACK_"))


def literals_of(frame: FrameType | None) -> frozenset[float]:
    """Return the number that stands in the expression which the code is computing, such as the 1.0 of ``1.0 + x``.

    It is an operand or argument of the expression itself. None is found where the source cannot be read, and where
    another such number stands elsewhere in the function: a later step may take that branch.
    """
    if frame is None:
        return frozenset()
    positions = list(frame.f_code.co_positions())
    own = _numbers_of(_expression_of(frame.f_code, positions[frame.f_lasti // 2]))
    expressions = (_expression_of(frame.f_code, each) for each in dict.fromkeys(positions)) if own else ()
    others = (_numbers_of(one) for one in expressions if not isinstance(one, ast.Call) or _name_of(one.func) in _SUMS)
    return own if all(numbers <= own for numbers in others) and len(own) == 1 else frozenset()


def _numbers_of(expression: ast.expr | None) -> frozenset[float]:
    """Return the numbers that stand in an expression as terms of a sum, or as arguments of a call."""
    if isinstance(expression, ast.BinOp) and isinstance(expression.op, ast.Add | ast.Sub):
        operands = [expression.left, expression.right]
    elif isinstance(expression, ast.Call):
        operands = expression.args
    else:
        return frozenset()
    values = (_number_of(operand) for operand in operands)
    return frozenset(value for value in values if value is not None)


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@functools.lru_cache(4096)
def _expression_of(code: CodeType, position: Sequence[int | None]) -> ast.expr | None:
    first, last, start, end = position
    if first is None or last is None:
        return None
    lines = [linecache.getline(code.co_filename, line).encode() for line in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    try:
        return ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except SyntaxError:  # the file has changed since it was imported
        return None


def _number_of(operand: ast.expr) -> float | None:
    try:
        value = ast.literal_eval(operand)
    except ValueError:
        return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
