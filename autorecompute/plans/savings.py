"""Savings as expressions: sums of element counts over symbolic dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.plans.expressions import ExpressionError, as_sympy, evaluate_tree, read

if TYPE_CHECKING:
    from collections.abc import Mapping


def simplify(raw: str, names: Mapping[str, str] | None = None) -> str:
    """The expression in its shortest form; what is none stays as it is.

    Args:
        raw: The expression as the training system writes it.
        names: What to call its dimensions instead of its own names; one that is not among them keeps its own.
    """
    import sympy

    try:
        expression = as_sympy(read(raw))
    except ExpressionError:
        return raw
    new_names = {
        symbol: sympy.Symbol((names or {}).get(str(symbol), str(symbol))) for symbol in expression.free_symbols
    }
    return str(sympy.factor_terms(sympy.expand(expression.subs(new_names))))


def evaluate(raw: str, dims: Mapping[str, int]) -> int | None:
    """Bytes at these dimensions; ``None`` where it has an unknown one or no value there, or is no expression."""
    try:
        return round(evaluate_tree(read(raw), dims))
    except (ExpressionError, KeyError, ZeroDivisionError):
        return None
