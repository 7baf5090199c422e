"""Savings of plans, as expressions of the dimensions of a batch."""

from __future__ import annotations

import ast
import functools
import math
import operator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from autorecompute.plans import Plan


BATCH, SEQUENCE = "batch", "sequence"


DEEPEST = 300  # operators within one another; a sum of as many terms is as deep

_ARGUMENTS = {"floor": (1, 1), "ceiling": (1, 1), "Max": (2, DEEPEST), "Min": (2, DEEPEST), "Mod": (2, 2)}
"""Functions in inferred shapes, with their least and most arguments; sympy has them under the same names."""

NO_PART = f"an expression holds more than numbers, names, + - * / // % ** and {', '.join(_ARGUMENTS)}"

LONGEST_TEXT = 10_000
LARGEST_NUMBER = 1 << 63
LARGEST_EXPONENT = 16
LARGEST_POWER = 1000  # so many factors a product may have when its powers are written out

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_CALLS: dict[str, Callable[..., Any]] = {
    "floor": lambda value: Fraction(math.floor(value)),
    "ceiling": lambda value: Fraction(math.ceil(value)),
    "Max": max,
    "Min": min,
    "Mod": operator.mod,
}


@functools.lru_cache(maxsize=4096)
def read(text: str) -> ast.expr:
    """Return the tree of an expression, of which every node was looked at.

    Raises:
        ValueError: something other than arithmetic stands there, or more of it than any size takes.
    """
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"an expression has more than {LONGEST_TEXT} letters")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"'{text[:80]}' is no expression") from error
    _count_factors(tree, 0)
    return tree


def _work_out(node: ast.expr, leaf: Callable[..., Any], calls: Mapping[str, Callable[..., Any]]) -> Any:
    match node:
        case ast.BinOp():
            left, right = _work_out(node.left, leaf, calls), _work_out(node.right, leaf, calls)
            value = _OPERATORS[type(node.op)](left, right)
        case ast.UnaryOp():
            value = _OPERATORS[type(node.op)](_work_out(node.operand, leaf, calls))
        case ast.Call(func=ast.Name(id=name)):
            value = calls[name](*[_work_out(argument, leaf, calls) for argument in node.args])
        case _:
            value = leaf(node)
    # Python divides whole numbers to floats.
    return Fraction(value) if isinstance(value, int) else value


def _count_factors(node: ast.AST, depth: int) -> int:
    """Count the numbers and names when powers are written out; refuse too many, and what is no arithmetic."""
    if depth > DEEPEST:
        raise ValueError("an expression is nested too deeply")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and value <= LARGEST_NUMBER:
            return 1
        case ast.Name():
            return 1
        case ast.BinOp(op=ast.Pow()):
            factors = _exponent(node.right) * _count_factors(node.left, depth + 1)
        case ast.BinOp() | ast.UnaryOp() | ast.Call():
            factors = sum(_count_factors(part, depth + 1) for part in _parts(node))
        case _:
            raise ValueError(NO_PART)
    if factors > LARGEST_POWER:
        raise ValueError("an expression has too many factors")
    return factors


def _parts(node: ast.BinOp | ast.UnaryOp | ast.Call) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        least, most = _ARGUMENTS.get(name, (1, 0))
        if node.keywords or not least <= len(node.args) <= most:
            raise ValueError(NO_PART)
        yield from node.args
    elif type(node.op) not in _OPERATORS:
        raise ValueError(NO_PART)
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    else:
        yield node.operand


def _exponent(node: ast.expr) -> int:
    number = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    if not isinstance(number, ast.Constant) or type(number.value) is not int or number.value > LARGEST_EXPONENT:
        raise ValueError(f"an exponent is no whole number up to {LARGEST_EXPONENT}")
    return max(number.value, 1)


NEGLIGIBLE_BYTES = 2**20
"""A training process takes hundreds of MiB: plans that save less than one together make no batch fit."""


def simplify(raw: str, names: Mapping[str, str] | None = None) -> str:
    """Return the shortest form with dimensions renamed by ``names``, each a symbol; what is none stays as it is."""
    import sympy

    def leaf(node: ast.Constant | ast.Name) -> Any:
        return sympy.Rational(str(node.value)) if isinstance(node, ast.Constant) else sympy.Symbol(node.id)

    try:
        tree = read(raw)
    except ValueError:
        return raw
    expression = _work_out(tree, leaf, {name: getattr(sympy, name) for name in _ARGUMENTS})
    new_names = {sympy.Symbol(own): sympy.Symbol(new) for own, new in (names or {}).items()}
    return str(sympy.factor_terms(sympy.expand(expression.subs(new_names))))


def evaluate(raw: str, dims: Mapping[str, int]) -> int | None:
    """Return the bytes at these dimensions; ``None`` where it has none there, or is no expression."""

    def leaf(node: ast.Constant | ast.Name) -> Fraction:
        return Fraction(str(node.value)) if isinstance(node, ast.Constant) else Fraction(dims[node.id])

    try:
        return round(Fraction(_work_out(read(raw), leaf, _CALLS)))
    except (ValueError, KeyError, ZeroDivisionError):
        return None


def explain_worthless(plans: Iterable[Plan], dims: Mapping[str, int]) -> str:
    """Return two sentences where all plans save next to nothing; empty where they do not, or it is unknown."""
    savings = [evaluate(plan.saving, dims) for plan in plans]
    known = [saving for saving in savings if saving is not None]
    if len(known) < len(savings) or sum(known) >= NEGLIGIBLE_BYTES:
        return ""
    offer = f"all plans together save {sum(known):,} bytes" if known else "the model offers no plan"
    return f"Nothing is worth recomputing at this batch: {offer}. A smaller batch saves memory here."
