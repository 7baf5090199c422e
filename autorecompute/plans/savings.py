"""ORT's stated savings: sums of element counts over symbolic dimensions, as sympy expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def simplify(raw: str) -> str:
    """The expression in its shortest form; dimensions keep the names ORT gave them."""
    import sympy

    return str(sympy.nsimplify(_parse(raw)))


def evaluate(raw: str, dims: Mapping[str, int]) -> int | None:
    """Bytes at these dimensions, or ``None`` where the expression has an unknown one."""
    value = _parse(raw).subs(dict(dims))
    return round(float(value)) if value.is_number else None


def _parse(raw: str) -> Any:
    from sympy.parsing.sympy_parser import parse_expr

    return parse_expr(raw)
