"""ORT's stated savings: sums of element counts over symbolic dimensions, as sympy expressions."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = ("Integer", "Float", "Rational", "Symbol", "Function", "floor", "ceiling", "Max", "Min", "Mod")
"""What sympy's parser needs, and what stands in the shapes that ORT infers."""


def simplify(raw: str, names: Mapping[str, str] | None = None) -> str:
    """The expression in its shortest form.

    Args:
        raw: The expression as ORT writes it.
        names: What to call its dimensions instead of ORT's names; one that is not among them keeps its own.
    """
    import sympy

    expression = sympy.nsimplify(_parse(raw))
    new_names = {
        symbol: sympy.Symbol((names or {}).get(str(symbol), str(symbol))) for symbol in expression.free_symbols
    }
    return str(sympy.factor_terms(sympy.expand(expression.subs(new_names))))


def evaluate(raw: str, dims: Mapping[str, int]) -> int | None:
    """Bytes at these dimensions, or ``None`` where the expression has an unknown one."""
    value = _parse(raw).subs(dict(dims))
    return round(float(value)) if value.is_number else None


def dimensions_in(raw: str) -> frozenset[str]:
    """The names of all dimensions that the expression depends on."""
    return frozenset(map(str, _parse(raw).free_symbols))


@functools.lru_cache(maxsize=1024)
def _parse(raw: str) -> Any:
    from sympy.parsing.sympy_parser import parse_expr

    return parse_expr(raw, global_dict=dict(_vocabulary()))


@functools.cache
def _vocabulary() -> dict[str, Any]:
    """All words that are not the name of a dimension: to sympy itself, ``sequence`` is a function and ``N`` another."""
    import sympy

    return {"__builtins__": {}, **{word: getattr(sympy, word) for word in _WORDS}}
