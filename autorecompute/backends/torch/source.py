"""What is read of a script's source beside a frame that runs it: scopes, calls, and values that are known there."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import linecache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from autorecompute.backends.torch.callers import local_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType

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
