"""Reads the source of the script: which line calls, how often a model is called, and how gradients are accumulated."""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import inspect
import itertools
import linecache
import os
import site
import sys
import sysconfig
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.amp.grad_scaler import GradScaler
from torch.autograd.function import BackwardCFunction
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import CodeType, FrameType

    from torch.nn import Module


_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[3]))
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


LOOPS = (ast.For, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*LOOPS, *FUNCTIONS)
UNKNOWN: Final = object()


def scopes(file: str, line: int) -> list[ast.AST]:
    """Return the loops around a line, the innermost first, and the function or module that they are in."""
    tree = _tree(file)
    around = [node for node in ast.walk(tree) if isinstance(node, _SCOPES) and node.lineno <= line <= end(node)]
    around.sort(key=lambda node: (end(node), -node.lineno, -node.col_offset))
    loops = list(itertools.takewhile(lambda node: isinstance(node, LOOPS), around))
    return [*loops, around[len(loops)] if len(loops) < len(around) else tree]


@functools.lru_cache(maxsize=16)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # no Python, or another one's
        return ast.Module([], [])


def end(node: ast.stmt) -> int:
    """Return the last line of a statement."""
    return node.end_lineno or node.lineno


def inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs with a scope: not what a function does that is defined there, and called who knows where."""
    waiting = [scope]
    while waiting:
        within = [node for node in ast.iter_child_nodes(waiting.pop()) if not isinstance(node, FUNCTIONS)]
        waiting += within
        yield from within


def codes(loop: ast.AST, frame: FrameType) -> Iterator[CodeType]:
    """Yield the code of the functions and methods that a loop calls, where their names tell them."""
    for node in inside(loop):
        match node:
            case ast.Call(func=ast.Name() as name):
                function = value_of(name, frame)
            case ast.Call(func=ast.Attribute(value=holder, attr=attribute)):
                function = inspect.getattr_static(value_of(holder, frame), attribute, None)
            case _:
                continue
        if isinstance(function, FunctionType):
            yield function.__code__


def value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a number, a name, or an attribute in an object or its class; run nothing of theirs."""
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return local_of(frame, expression.id, frame.f_globals.get(expression.id, UNKNOWN))
    if isinstance(expression, ast.Attribute):
        holder = value_of(expression.value, frame)
        return inspect.getattr_static(holder, expression.attr, UNKNOWN) if holder is not UNKNOWN else UNKNOWN
    return UNKNOWN


MOST_CALLS = 16
"""A step with more of them is not looked at: a loop of so many rounds seldom runs to its end."""

_NAMELESS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_INSTALLED = tuple({*site.getsitepackages(), *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))})


class _Event(NamedTuple):
    """Event in the code, in its order.

    Attributes:
        calls: So many calls; 0 where it goes back.
        is_running: Whether one of them is the one that runs now.
    """

    calls: int
    is_running: bool = False


_BACK = _Event(0)


def calls_before_backward() -> int:
    """Count the calls of a model before its backward pass, at the caller's place."""
    calls = 1
    for frame, end in _own_frames():
        try:
            counted, goes_back = _count(frame, end)
        except RecursionError:  # an expression of thousands of terms, which Python itself can compile
            break
        calls *= counted
        if goes_back or calls > MOST_CALLS:
            break
    return calls if calls <= MOST_CALLS else 1


def _own_frames() -> Iterator[tuple[FrameType, tuple[int, int]]]:
    """Yield the script's own frames up to a library's, the innermost first, each with the end of its running call.

    A comprehension is a part of the function that it is in.
    """
    inner: tuple[int, int] | None = None
    for frame in calling_frames():
        if frame.f_code.co_filename.startswith(_INSTALLED):
            return
        inner = inner or _end_of_call(frame)
        if inner is None:
            return
        if frame.f_code.co_name not in _NAMELESS:
            yield frame, inner
            inner = None


def _end_of_call(frame: FrameType) -> tuple[int, int] | None:
    """Return the end of the expression that a frame is computing; ``None`` where nobody knows."""
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return (line, column) if line is not None and column is not None else None


def _count(frame: FrameType, end: tuple[int, int]) -> tuple[int, bool]:
    """Count how often a frame's running call comes before the backward pass there, and tell whether there is one."""
    reader, found = None, []
    for scope in scopes(frame.f_code.co_filename, frame.f_lineno):
        running = next((node for node in inside(scope) if isinstance(node, ast.Call) and _end(node) == end), None)
        if running is None:
            return 1, False
        reader = _Reader(running, frame)
        found = list(reader.events(scope.body))  # type: ignore[attr-defined]
        if _BACK in found:
            break
    place = next((place for place, event in enumerate(found) if event.is_running), None)
    if reader is None or place is None:
        return 1, False
    before = next((at for at in range(place, -1, -1) if found[at] == _BACK), -1)
    behind = next((at for at in range(place, len(found)) if found[at] == _BACK), len(found))
    return max(1, sum(event.calls for event in found[before + 1 : behind])), _BACK in found


def _end(node: ast.expr) -> tuple[int | None, int | None]:
    """Return the end of an expression, by which a call is known: no two end at one place."""
    return node.end_lineno, node.end_col_offset


class _Reader:
    """Reads code for calls like the one that runs, and for what goes back.

    Args:
        running: That call.
        frame: The frame that it runs in.
    """

    def __init__(self, running: ast.Call, frame: FrameType) -> None:
        self._running, self._frame = running, frame
        self._called = ast.dump(running.func)

    def events(self, nodes: Iterable[ast.AST]) -> Iterator[_Event]:
        """Give what these do, in order."""
        for node in nodes:
            yield from self._events(node)

    def _events(self, node: ast.AST) -> Iterator[_Event]:
        match node:
            case ast.Lambda() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return
            case ast.If() | ast.IfExp():
                yield from self._events(node.test)
                yield from self._branch(node)
            case ast.For(iter=rounds):
                yield from self._events(rounds)
                yield from self._loop(node.body, _rounds(rounds, self._frame) if not _may_end(node) else 1)
            case ast.With(items=items):
                found = self.events([*items, *node.body])
                yield from (one for one in found if one.is_running or one == _BACK or not _is_without(items))
            case ast.Try(body=body, orelse=orelse, finalbody=final):
                yield from self.events([*body, *orelse, *final])
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                first, *_ = node.generators
                yield from self._events(first.iter)
                parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                yield from self._loop(parts, _rounds(first.iter, self._frame))
            case ast.Call():
                yield from self.events(ast.iter_child_nodes(node))
                if node is self._running or ast.dump(node.func) == self._called:
                    yield _Event(1, node is self._running)
                elif self._goes_back(node):
                    yield _BACK
            case _:
                yield from self.events(ast.iter_child_nodes(node))

    def _branch(self, node: ast.If | ast.IfExp) -> list[_Event]:
        """Return the branch that runs or will run, where it is known; else the one with more calls."""
        branches = [list(self.events(part if isinstance(part, list) else [part])) for part in (node.body, node.orelse)]
        value = value_of(node.test, self._frame)
        if type(value) in {bool, int, type(None)}:
            return branches[0 if value else 1]
        return max(branches, key=lambda one: (any(each.is_running for each in one), sum(each.calls for each in one)))

    def _loop(self, body: Iterable[ast.AST], rounds: int) -> list[_Event]:
        found = list(self.events(body))
        if _BACK in found or not found:
            return found
        calls, is_running = sum(event.calls for event in found), any(event.is_running for event in found)
        return [_Event(rounds * calls, is_running)]

    def _goes_back(self, node: ast.Call) -> bool:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name.endswith("backward") or (name == "grad" and "autograd" in ast.dump(node.func)):
            return True
        return any("backward" in code.co_names for code in codes(ast.Expr(node), self._frame))


def _may_end(loop: ast.For) -> bool:
    """Tell whether a loop may end before its last round."""
    return any(isinstance(node, (ast.Break, ast.Return)) for node in inside(loop))


def _is_without(items: Iterable[ast.withitem]) -> bool:
    """Tell whether a context is one without gradients."""
    names = [ast.dump(item.context_expr) for item in items]
    return any("no_grad" in name or "inference_mode" in name for name in names)


def _rounds(expression: ast.expr, frame: FrameType) -> int:
    """Count the rounds of a loop over an expression; 1 where nobody knows."""
    match expression:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return max(1, len(parts))
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            value = value_of(count, frame)
            return max(1, value) if type(value) is int else 1
        case ast.Call(func=ast.Name(id="zip" | "enumerate" | "reversed" | "list" | "tuple"), args=[first, *_]):
            return _rounds(first, frame)
    value = value_of(expression, frame)
    return max(1, len(value)) if type(value) in {list, tuple, dict, range} else 1


_TOLD: Final = {
    "transformers.": ("args", "gradient_accumulation_steps"),
    "lightning.": ("trainer", "accumulate_grad_batches"),
    "pytorch_lightning.": ("trainer", "accumulate_grad_batches"),
}
"""Attributes that hold a library's gradient accumulation, by the beginning of its modules' names."""


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
    """Return the gradient accumulation steps that Accelerate was told."""
    state = sys.modules.get("accelerate.state")
    return int(state.GradientState().num_steps) if state is not None else 1


def _reads(frame: FrameType, called: Sequence[FrameType]) -> bool | None:
    """Tell whether the code around a frame's running line accumulates; ``None`` where it has no optimizer step."""
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
