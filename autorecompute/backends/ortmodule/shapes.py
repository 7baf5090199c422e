"""The symbolic shapes of a graph's values, in canonical names of dimensions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autorecompute.plans.dimensions import BATCH, SEQUENCE
from autorecompute.plans.savings import evaluate, simplify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RECOMPUTED = "_recompute"
"""How ORT ends the name of a node, and of its outputs, that it runs once more (``memory_optimizer.cc``)."""

_BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8e4m3fn", "float8e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}


def bytes_of_element(kind: str) -> int:
    """Bytes of one element of a type, by ORT's word for it; 0 for strings and what is no number."""
    return _BYTES.get(kind, 0)


class ShapeBook:
    """What ORT inferred of each value's shape, filled up with what was seen.

    Args:
        graph: The graph as ONNX.
        names: What to call the symbolic dimensions instead of ORT's names.
        dims: Their values in the step that was seen.
    """

    def __init__(self, graph: Any, names: Mapping[str, str], dims: Mapping[str, int]) -> None:
        values = (*graph.value_info, *graph.input, *graph.output)
        self._inferred = {value.name: read_shape(value) for value in values}
        self._names, self._dims = names, dims
        self._expressions: dict[str, tuple[str, int | None]] = {}

    def shape_of(self, name: str, seen: Sequence[int]) -> tuple[str, ...]:
        """Return the value's sizes as expressions that agree with what was seen.

        Where ORT inferred nothing, a first size that the batch divides grows with the batch, and with the sequence
        where that divides the rest; every other size is constant.
        """
        inferred = self._inferred.get(name) or self._inferred.get(name.removesuffix(RECOMPUTED)) or ()
        if len(inferred) != len(seen):
            return tuple(self._guess(place, size) for place, size in enumerate(seen))
        pairs = enumerate(zip(inferred, seen, strict=True))
        return tuple(self._express(text, size) or self._guess(place, size) for place, (text, size) in pairs)

    def _express(self, text: str, seen: int) -> str | None:
        if not text:
            return None
        if text not in self._expressions:
            simple = simplify(text, self._names)
            self._expressions[text] = (simple, evaluate(simple, self._dims))
        expression, size = self._expressions[text]
        return expression if size == seen else None

    def _guess(self, place: int, seen: int) -> str:
        names = [name for name in (BATCH, SEQUENCE) if self._dims.get(name, 0) > 1]
        for known in (names, names[:1]) if place == 0 and BATCH in names else ():
            size = math.prod(self._dims[name] for name in known)
            if seen % size == 0:
                return "*".join([str(seen // size), *known])
        return str(seen)


def read_shape(value: Any) -> tuple[str, ...]:
    """Return the sizes in an ONNX value's type: numbers, expressions, and nothing where one is not known."""
    return tuple(size.dim_param or str(size.dim_value or "") for size in value.type.tensor_type.shape.dim)


def read_dims(graph: Any, seen: Mapping[str, Sequence[int]], names: Mapping[str, str]) -> dict[str, int]:
    """Return the symbolic dimensions of the model's inputs, as they were in one step.

    Args:
        graph: The graph as ONNX.
        seen: Shapes of the graph's inputs, as the step had them.
        names: What to call the symbolic dimensions instead of ORT's names.
    """
    return {
        names.get(text, text): size
        for value in graph.input
        for text, size in zip(read_shape(value), seen.get(value.name, ()), strict=False)
        if text and not text.isdecimal()
    }
