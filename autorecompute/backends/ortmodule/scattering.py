"""Exports operators that add to places of a tensor, which ORTModule 1.19.2 exports or trains wrongly.

* ``index_add`` adds at each index as often as it comes: torch exports it so that of equal indices one alone counts.
  So does ``index_put`` where it accumulates.
* ``scatter_add`` adds to zeros: ORT's gradient is wrong for what it would add to.
* ``scatter_reduce`` is ``scatter_add`` where it sums, and is refused elsewhere: its gradient ends the process in ORT.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.onnx import symbolic_helper as helper
from torch.onnx import symbolic_opset11, symbolic_opset16

from autorecompute.backends.ortmodule.graph_pieces import LAST, constant, dtype_of, slice_shape, zero_like


def register(symbolics: dict[str, Any]) -> None:
    """Put the functions among symbolic functions.

    Args:
        symbolics: By the names of operators.
    """
    symbolics["::index_add"] = export_index_add
    symbolics["::index_put"] = export_index_put
    symbolics["::scatter_add"] = helper.parse_args("v", "i", "v", "v")(export_scatter_add)
    symbolics["::scatter_reduce"] = helper.parse_args("v", "i", "v", "v", "s", "b")(export_scatter_reduce)


def export_index_add(g: Any, tensor: Any, dim: Any, index: Any, source: Any, *alpha: Any) -> Any:
    """``index_add`` as a sum over scattered elements, each with the index that its slice has."""
    rank, factor = helper._get_tensor_rank(tensor), helper._get_const(alpha[0], "f", "alpha") if alpha else 1  # noqa: SLF001
    axis = helper._get_const(dim, "i", "dim") % rank  # noqa: SLF001
    if factor != 1:
        source = g.op("Mul", source, constant(g, torch.tensor(factor, dtype=dtype_of(source))))
    return _add_slices(g, tensor, axis, index, source)


def export_index_put(g: Any, tensor: Any, indices: Any, values: Any, accumulate: Any = None) -> Any:
    """``index_put``; where it accumulates, as a sum over scattered elements.

    Args:
        g: The graph.
        tensor: What is put into.
        indices: A tensor of places for each of the first dimensions.
        values: What is put there.
        accumulate: Whether it is added to what is there.

    Raises:
        RuntimeError: it accumulates at places in several dimensions, or at those of a mask.
    """
    if accumulate is None or not helper._parse_arg(accumulate, "b"):  # noqa: SLF001
        never = constant(g, torch.tensor(data=False))
        return symbolic_opset11.index_put(g, tensor, indices, values, accumulate or never)
    places = helper._unpack_list(indices) if helper._is_packed_list(indices) else [indices]  # noqa: SLF001
    if len(places) != 1 or helper._is_bool(places[0]):  # noqa: SLF001
        raise RuntimeError("ORT adds wrongly in index_put(accumulate=True). Use index_add or scatter_add.")
    inner = slice_shape(g, tensor, 1, LAST)
    whole = g.op("Expand", values, g.op("Concat", g.op("Shape", places[0]), inner, axis_i=0))
    open_size = constant(g, torch.tensor([-1]))
    slices = g.op("Reshape", whole, g.op("Concat", open_size, inner, axis_i=0))
    return _add_slices(g, tensor, 0, g.op("Reshape", places[0], open_size), slices)


def export_scatter_add(g: Any, tensor: Any, dim: int, index: Any, source: Any) -> Any:
    """``scatter_add`` to zeros, which are then added: ORT's gradient for the tensor lacks what is added to."""
    zeros = g.op("Expand", zero_like(g, tensor), g.op("Shape", tensor))
    zeros.setType(tensor.type())
    return g.op("Add", tensor, symbolic_opset16.scatter_add(g, zeros, dim, index, source))


def export_scatter_reduce(  # noqa: PLR0913, PLR0917  (the operator's own parameters)
    g: Any,
    tensor: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    include_self: bool,  # noqa: FBT001
) -> Any:
    """``scatter_reduce``, where it sums.

    Raises:
        RuntimeError: it does something else.
    """
    if reduce != "sum" or not include_self:
        raise RuntimeError(f'ORT cannot train scatter_reduce with reduce="{reduce}". Use scatter_add.')
    return export_scatter_add(g, tensor, dim, index, source)


def _add_slices(g: Any, tensor: Any, axis: int, index: Any, source: Any) -> Any:
    rank = helper._get_tensor_rank(tensor)  # noqa: SLF001
    shape = constant(g, torch.tensor([-1 if place == axis else 1 for place in range(rank)]))
    everywhere = g.op("Expand", g.op("Reshape", index, shape), g.op("Shape", source))
    return export_scatter_add(g, tensor, axis, everywhere, source)
