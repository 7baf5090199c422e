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
from typing import TYPE_CHECKING, Any, Final

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
_SUMS = {"add", "add_", "sub", "sub_", "subtract"}
_LIGHTNING_STEP = "lightning.pytorch.loops.optimization.automatic", "pytorch_lightning.loops.optimization.automatic"


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _calling_frames() -> Iterator[FrameType]:
    """Yield the frames that are neither torch's nor ours, the innermost first."""
    return (frame for frame in _frames() if not frame.f_code.co_filename.startswith(_LIBRARIES))


def calling_frame() -> FrameType | None:
    """Return the innermost frame that is neither torch's nor ours; ``None`` where there is none."""
    return next(_calling_frames(), None)


def is_in_autograd_function() -> bool:
    """Tell whether this runs in the forward of an autograd function in Python, without gradients.

    A module that is called there runs again in the backward pass, as in torch's reentrant checkpoint and in those of
    other libraries.
    """
    for frame in _frames():
        code = frame.f_code
        is_forward = code.co_name == "forward" and code.co_argcount and code.co_varnames[0] != "self"  # of a module
        if is_forward and isinstance(local_of(frame, code.co_varnames[0]), BackwardCFunction):
            return True
    return False


def keeps_for_backward() -> bool:
    """Tell whether a module that is called now keeps anything, or will when a checkpoint runs it again."""
    return torch.is_grad_enabled() or is_in_autograd_function()


def local_of(frame: FrameType, name: str, default: Any = None) -> Any:
    """Return the value that a name has in a frame.

    Before Python 3.13 a function's frame goes on holding the copies of its variables that it was asked for once.
    """
    code = frame.f_code
    is_function = code.co_flags & inspect.CO_OPTIMIZED
    variables = {*code.co_varnames, *code.co_cellvars, *code.co_freevars} if is_function else set()
    if is_function and name not in variables:  # asked all the same, the frame would change a dict of the script's
        return default
    held = frame.f_locals
    value = held.get(name, default)
    # Where the script called locals(), the dict is its own, too: a third reference beside the frame's and ours.
    if is_function and type(held) is dict and sys.getrefcount(held) <= 3:  # noqa: PLR2004
        for variable in variables:  # what else is there is the script's: names that it made by exec
            held.pop(variable, None)
    return value


def replica_around(module: Module) -> DistributedDataParallel | None:
    """Return the ``DistributedDataParallel`` whose call is calling the module now; ``None`` where there is none."""
    callers = (local_of(frame, "self") for frame in _frames())
    replicas = (caller for caller in callers if isinstance(caller, DistributedDataParallel))
    return next((replica for replica in replicas if replica.module is module), None)


def keeps_gradients() -> bool:
    """Tell whether a model's caller frees the last step's gradients behind the forward pass, as Lightning does."""
    return any(str(frame.f_globals.get("__name__")).endswith(_LIGHTNING_STEP) for frame in _frames())


def keeps_result(frame: FrameType | None) -> bool:
    """Tell whether the code that is calling a model now still has the result when its backward pass runs.

    That is so for ``logits = model(x)`` where the same function calls ``backward`` later. It is not so for
    ``criterion(model(x), y)``, nor in a function that returns the loss and takes the name with it.
    """
    if frame is None or "backward" not in frame.f_code.co_names:
        return False
    # Whether the result of the call that runs there, or an attribute other than its loss, gets a name.
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
    values = []
    for operand in operands:
        with contextlib.suppress(ValueError):
            values.append(ast.literal_eval(operand))
    return frozenset(value for value in values if type(value) in {int, float})


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


_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_UNKNOWN: Final = object()


def _scopes(file: str, line: int) -> list[ast.AST]:
    """Return the loops around a line, the innermost first, and the function or module that they are in."""
    tree = _tree(file)
    scopes = (node for node in ast.walk(tree) if isinstance(node, (*_LOOPS, *_FUNCTIONS)))
    around = [node for node in scopes if node.lineno <= line <= _last_line(node)]
    around.sort(key=lambda node: (_last_line(node), -node.lineno, -node.col_offset))
    loops = list(itertools.takewhile(lambda node: isinstance(node, _LOOPS), around))
    return [*loops, around[len(loops)] if len(loops) < len(around) else tree]


@functools.lru_cache(maxsize=16)
def _tree(file: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # no Python, or another one's
        return ast.Module([], [])


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what runs with a scope: not what a function does that is defined there, and called who knows where."""
    waiting = [scope]
    while waiting:
        within = [node for node in ast.iter_child_nodes(waiting.pop()) if not isinstance(node, _FUNCTIONS)]
        waiting += within
        yield from within


def _codes(loop: ast.AST, frame: FrameType) -> Iterator[CodeType]:
    """Yield the code of the functions and methods that a loop calls, where their names tell them."""
    for node in _inside(loop):
        match node:
            case ast.Call(func=ast.Name() as name):
                function = _value_of(name, frame)
            case ast.Call(func=ast.Attribute(value=holder, attr=attribute)):
                function = inspect.getattr_static(_value_of(holder, frame), attribute, None)
            case _:
                continue
        if isinstance(function, FunctionType):
            yield function.__code__


def _value_of(expression: ast.expr, frame: FrameType) -> Any:
    """Return the value of a number, a name, or an attribute in an object or its class; run nothing of theirs."""
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return local_of(frame, expression.id, frame.f_globals.get(expression.id, _UNKNOWN))
    if isinstance(expression, ast.Attribute):
        holder = _value_of(expression.value, frame)
        return inspect.getattr_static(holder, expression.attr, _UNKNOWN) if holder is not _UNKNOWN else _UNKNOWN
    return _UNKNOWN


MOST_CALLS = 16  # a step with more of them is not looked at: a loop of so many rounds seldom runs to its end

_NAMELESS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_INSTALLED = tuple({*site.getsitepackages(), *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))})


_Event = tuple[int, bool]
"""So many calls in the code, or 0 where it goes back; true if one of them is the one that runs now."""

_BACK: _Event = (0, False)


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
    for frame in _calling_frames():
        if frame.f_code.co_filename.startswith(_INSTALLED):
            return
        inner = inner or _end_of_call(frame)
        if inner is None:
            return
        if frame.f_code.co_name not in _NAMELESS:
            yield frame, inner
            inner = None


def _end_of_call(frame: FrameType) -> tuple[int, int] | None:
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return (line, column) if line is not None and column is not None else None


def _count(frame: FrameType, end: tuple[int, int]) -> tuple[int, bool]:
    """Count how often a frame's running call comes before the backward pass there, and tell whether there is one."""
    found: list[_Event] = []
    for scope in _scopes(frame.f_code.co_filename, frame.f_lineno):
        calls = (node for node in _inside(scope) if isinstance(node, ast.Call))
        # No two calls end at one place.
        running = next((call for call in calls if (call.end_lineno, call.end_col_offset) == end), None)
        if running is None:
            return 1, False
        found = list(_Reader(running, frame).events(scope.body))  # type: ignore[attr-defined]
        if _BACK in found:
            break
    between = (list(run) for is_back, run in itertools.groupby(found, _BACK.__eq__) if not is_back)
    counted = next((count for count, is_running in map(_sum, between) if is_running), None)
    return (1, False) if counted is None else (max(1, counted), _BACK in found)


def _sum(events: Sequence[_Event]) -> _Event:
    return sum(calls for calls, _ in events), any(is_running for _, is_running in events)


class _Reader:
    """Reads code for calls like the one that runs, and for what goes back."""

    def __init__(self, running: ast.Call, frame: FrameType) -> None:
        self._running, self._frame = running, frame
        self._called = ast.dump(running.func)

    def events(self, nodes: Iterable[ast.AST]) -> Iterator[_Event]:
        """Yield what these do, in order."""
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
                may_end = any(isinstance(inner, ast.Break | ast.Return) for inner in _inside(node))
                yield from self._loop(node.body, 1 if may_end else _rounds(rounds, self._frame))
            case ast.With(items=items):
                found = self.events([*items, *node.body])
                contexts = " ".join(ast.dump(item.context_expr) for item in items)
                is_without = "no_grad" in contexts or "inference_mode" in contexts
                yield from (one for one in found if one[1] or one == _BACK or not is_without)
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
                    yield 1, node is self._running
                elif self._goes_back(node):
                    yield _BACK
            case _:
                yield from self.events(ast.iter_child_nodes(node))

    def _branch(self, node: ast.If | ast.IfExp) -> list[_Event]:
        """Return the branch that runs or will run, where it is known; else the one with more calls."""
        branches = [list(self.events(part if isinstance(part, list) else [part])) for part in (node.body, node.orelse)]
        value = _value_of(node.test, self._frame)
        if type(value) in {bool, int, type(None)}:
            return branches[0 if value else 1]
        return max(branches, key=lambda events: _sum(events)[::-1])

    def _loop(self, body: Iterable[ast.AST], rounds: int) -> list[_Event]:
        found = list(self.events(body))
        if _BACK in found or not found:
            return found
        calls, is_running = _sum(found)
        return [(rounds * calls, is_running)]

    def _goes_back(self, node: ast.Call) -> bool:
        name = _name_of(node.func)
        if name.endswith("backward") or (name == "grad" and "autograd" in ast.dump(node.func)):
            return True
        return any("backward" in code.co_names for code in _codes(ast.Expr(node), self._frame))


def _rounds(expression: ast.expr, frame: FrameType) -> int:
    """Count the rounds of a loop over an expression; 1 where nobody knows."""
    match expression:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return max(1, len(parts))
        case ast.Call(func=ast.Name(id="range"), args=[count]):
            value = _value_of(count, frame)
            return max(1, value) if type(value) is int else 1
        case ast.Call(func=ast.Name(id="zip" | "enumerate" | "reversed" | "list" | "tuple"), args=[first, *_]):
            return _rounds(first, frame)
    value = _value_of(expression, frame)
    return max(1, len(value)) if type(value) in {list, tuple, dict, range} else 1


_TOLD: Final = {
    "transformers.": ("args", "gradient_accumulation_steps"),
    "lightning.": ("trainer", "accumulate_grad_batches"),
    "pytorch_lightning.": ("trainer", "accumulate_grad_batches"),
}
"""Attributes that hold a library's gradient accumulation, by the beginning of its modules' names."""


def accumulates_gradients() -> bool:
    """Tell whether who is calling a model now calls it several times for a step of the optimizer."""
    frames = list(_calling_frames())
    if told := list(_told_by(frames)):
        return max(told) > 1
    accelerate = sys.modules.get("accelerate.state")
    if accelerate is not None and accelerate.GradientState().num_steps > 1:
        return True
    read = (_reads(frame, frames[:number]) for number, frame in enumerate(frames))
    return next((found for found in read if found is not None), False)


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


def _reads(frame: FrameType, called: Sequence[FrameType]) -> bool | None:
    """Tell whether the code around a frame's running line accumulates; ``None`` where it has no optimizer step."""
    line, inner = frame.f_lineno, None
    optimizers = (Optimizer, GradScaler)  # by its type: asked for its class, a proxy runs code of its own
    for scope in _scopes(frame.f_code.co_filename, line):
        calls = _calls(scope, "step")
        if steps := [call for call, holder in calls if issubclass(type(_value_of(holder, frame)), optimizers)]:
            if inner is not None:
                return _repeats(inner, frame, called)
            return all(_is_at_times(step, scope, line, frame) for step in steps)
        inner = scope
    return None


def _calls(scope: ast.AST, name: str) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield the calls inside of a method with this name, each with the object whose method it is."""
    for node in _inside(scope):
        match node:
            case ast.Call(func=ast.Attribute(value=holder, attr=attribute)) if attribute == name:
                yield node, holder


def _is_at_times(step: ast.Call, scope: ast.AST, line: int, frame: FrameType) -> bool:
    """Tell whether a step comes once in several rounds, and the line that runs in each."""
    for node in ast.walk(scope):
        if isinstance(node, ast.If) and _counts(node.test, scope, frame):
            is_inside = node.lineno <= step.lineno <= _last_line(node) and not node.lineno <= line <= _last_line(node)
            goes_on = any(isinstance(part, ast.Continue) for part in node.body)
            if is_inside or (goes_on and line < node.lineno < step.lineno):
                return True
    return False


def _counts(test: ast.expr, scope: ast.AST, frame: FrameType) -> bool:
    """Tell whether a test holds once in several rounds: it has a remainder, or a name that is made of one."""
    names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}
    assigned = (node for node in ast.walk(scope) if isinstance(node, ast.Assign))
    made = [one.value for one in assigned if names & {getattr(target, "id", "") for target in one.targets}]
    parts = [part for whole in (test, *made) for part in ast.walk(whole)]
    rests = [part.right for part in parts if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)]
    return any(_is_several(rest, frame) for rest in rests)


def _repeats(loop: ast.AST, frame: FrameType, called: Sequence[FrameType]) -> bool:
    """Tell whether a loop that goes back through the model has several rounds: unless it is over a range of one."""
    match loop:
        case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[count])) if not _is_several(count, frame):
            return False
    run = itertools.chain((one.f_code for one in called), _codes(loop, frame))
    names = [set(code.co_names) for code in run]  # what steps as well takes whole steps
    return any(_calls(loop, "backward")) or any("backward" in one and "step" not in one for one in names)


def _is_several(count: ast.expr, frame: FrameType) -> bool:
    """Tell whether a number is more than one, or nobody knows it."""
    value = _value_of(count, frame)
    return not isinstance(value, int) or value > 1
