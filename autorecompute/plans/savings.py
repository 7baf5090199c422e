"""Savings as expressions, sums of element counts over symbolic dimensions, and whether they are worth anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.plans.expressions import ExpressionError, as_sympy, evaluate_tree, read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from autorecompute.plans.plan import Plan

NEGLIGIBLE_BYTES = 2**20
"""A training process takes hundreds of MiB: plans that save less than one together make no batch fit."""


def simplify(raw: str, names: Mapping[str, str] | None = None) -> str:
    """Return the expression in its shortest form; what is none stays as it is.

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


def explain_worthless(plans: Iterable[Plan], dims: Mapping[str, int]) -> str:
    """Return two sentences where all plans together save next to nothing; empty where they may save more.

    Args:
        plans: All that can be recomputed.
        dims: The dimensions at which their savings are evaluated; a saving that depends on others may be large.
    """
    savings = [evaluate(plan.saving, dims) for plan in plans]
    known = [saving for saving in savings if saving is not None]
    if len(known) < len(savings) or sum(known) >= NEGLIGIBLE_BYTES:
        return ""
    offer = f"all plans together save {sum(known):,} bytes" if known else "the model offers no plan"
    return f"Nothing is worth recomputing at this batch: {offer}. A smaller batch saves memory here."
