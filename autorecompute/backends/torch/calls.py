"""How often a script calls its model before it goes back through all calls at once, read before its first step.

Two views of a batch, a consistency loss, a loop over crops: what all these calls keep is alive when the backward pass
begins. The code around the call is read, as far as the script's own functions go. What it hides, such as calls by
another name, is seen when a step runs.
"""

from __future__ import annotations

import ast
import site
import sysconfig
from typing import TYPE_CHECKING, NamedTuple

from autorecompute.backends.torch.callers import calling_frames
from autorecompute.backends.torch.source import codes, inside, scopes, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import FrameType

MOST_CALLS = 16
"""A step with more of them is not looked at: a loop of so many rounds seldom runs to its end."""

_NAMELESS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
_LIBRARIES = tuple({*site.getsitepackages(), *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib"))})


class _Event(NamedTuple):
    """What the code does, in its order.

    Attributes:
        calls: So many calls; 0 where it goes back.
        is_running: Whether one of them is the one that runs now.
    """

    calls: int
    is_running: bool = False


_BACK = _Event(0)


def calls_before_backward() -> int:
    """Return how often who is calling a model now calls it before its backward pass."""
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
        if frame.f_code.co_filename.startswith(_LIBRARIES):
            return
        inner = inner or _end_of_call(frame)
        if inner is None:
            return
        if frame.f_code.co_name not in _NAMELESS:
            yield frame, inner
            inner = None


def _end_of_call(frame: FrameType) -> tuple[int, int] | None:
    """Return where the expression ends that a frame is computing; ``None`` where nobody knows."""
    _, line, _, column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return (line, column) if line is not None and column is not None else None


def _count(frame: FrameType, end: tuple[int, int]) -> tuple[int, bool]:
    """Return how often the call that runs in a frame comes before the code there goes back, and whether it does."""
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
    """Return where an expression ends: no two calls end at one place, whatever lies in them."""
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
    """Return how often a loop over something runs; 1 where nobody knows."""
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
