"""Exports operators of PyTorch for which ORTModule has no symbolic function."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch.onnx import symbolic_helper as helper
from torch.onnx import symbolic_opset9, symbolic_opset11, symbolic_opset14, symbolic_opset16

from autorecompute.backends.ortmodule.installation import runs_as_it_is

if TYPE_CHECKING:
    from collections.abc import Callable


LAST = 2**63 - 1  # ONNX's end of a slice that goes to the end


def _constant(g: Any, value: Any, dtype: Any = None) -> Any:
    return g.op("Constant", value_t=torch.as_tensor(value, dtype=dtype))


def _slice_shape(g: Any, tensor: Any, start: int, end: int) -> Any:
    """Return the sizes of some of a tensor's dimensions."""
    bounds = (_constant(g, [place]) for place in (start, end))
    return g.op("Slice", g.op("Shape", tensor), *bounds)


def _zero_like(g: Any, tensor: Any) -> Any:
    """Return a zero of the tensor's type, without dimensions."""
    return _constant(g, torch.zeros((), dtype=_dtype_of(tensor)))


def _dtype_of(tensor: Any) -> Any:
    return helper._try_get_scalar_type(tensor).dtype()  # noqa: SLF001


def export_index_add(g: Any, tensor: Any, dim: Any, index: Any, source: Any, *alpha: Any) -> Any:
    """``index_add`` as a sum over scattered elements, each with the index that its slice has."""
    rank, factor = helper._get_tensor_rank(tensor), helper._get_const(alpha[0], "f", "alpha") if alpha else 1  # noqa: SLF001
    axis = helper._get_const(dim, "i", "dim") % rank  # noqa: SLF001
    if factor != 1:
        source = g.op("Mul", source, _constant(g, factor, dtype=_dtype_of(source)))
    return _add_slices(g, tensor, axis, index, source)


def export_index_put(g: Any, tensor: Any, indices: Any, values: Any, accumulate: Any = None) -> Any:
    """``index_put``; where it accumulates, as a sum over scattered elements.

    Raises:
        RuntimeError: it accumulates at places in several dimensions, or at those of a mask.
    """
    if accumulate is None or not helper._parse_arg(accumulate, "b"):  # noqa: SLF001
        never = _constant(g, value=False)
        return symbolic_opset11.index_put(g, tensor, indices, values, accumulate or never)
    places = helper._unpack_list(indices) if helper._is_packed_list(indices) else [indices]  # noqa: SLF001
    if len(places) != 1 or helper._is_bool(places[0]):  # noqa: SLF001
        raise RuntimeError("ORT adds wrongly in index_put(accumulate=True). Use index_add or scatter_add.")
    inner = _slice_shape(g, tensor, 1, LAST)
    whole = g.op("Expand", values, g.op("Concat", g.op("Shape", places[0]), inner, axis_i=0))
    open_size = _constant(g, [-1])
    slices = g.op("Reshape", whole, g.op("Concat", open_size, inner, axis_i=0))
    return _add_slices(g, tensor, 0, g.op("Reshape", places[0], open_size), slices)


def export_scatter_add(g: Any, tensor: Any, dim: int, index: Any, source: Any) -> Any:
    """``scatter_add`` to zeros, which are then added: ORT's gradient for the tensor lacks what is added to."""
    zeros = g.op("Expand", _zero_like(g, tensor), g.op("Shape", tensor))
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
    shape = _constant(g, [-1 if place == axis else 1 for place in range(rank)])
    everywhere = g.op("Expand", g.op("Reshape", index, shape), g.op("Shape", source))
    return export_scatter_add(g, tensor, axis, everywhere, source)


FLOAT, BOOL = torch.onnx.TensorProtoDataType.FLOAT, torch.onnx.TensorProtoDataType.BOOL
INT64 = torch.onnx.TensorProtoDataType.INT64
LARGEST_SHARED = 8  # entries: ORT makes one of equal constants up to so many, and cannot train two LayerNorms with it


def register(registry: Any) -> None:
    """Put the functions into ORTModule's registry of symbolic functions; a second time, it changes nothing."""
    symbolics = registry.CustomOpSymbolicRegistry._SYMBOLICS  # noqa: SLF001
    attention = helper.parse_args("v", "v", "v", "v", "f", "b", "v", "b")(export_attention)
    # Whoever chose ORT's own attention (ORTMODULE_ATEN_SDPA_FALLBACK) keeps it.
    symbolics.setdefault("::scaled_dot_product_attention", attention)
    symbolics["::unflatten"] = export_unflatten
    symbolics["::rms_norm"] = export_rms_norm
    symbolics["::softplus"] = helper.parse_args("v", "f", "f")(export_softplus)
    symbolics["::logsumexp"] = helper.parse_args("v", "is", "i")(export_logsumexp)
    symbolics["::cumsum"] = export_cumsum
    symbolics["::diff"] = helper.parse_args("v", "i", "i", "v", "v")(export_diff)
    symbolics["::index_add"] = export_index_add
    symbolics["::index_put"] = export_index_put
    symbolics["::scatter_add"] = helper.parse_args("v", "i", "v", "v")(export_scatter_add)
    symbolics["::scatter_reduce"] = helper.parse_args("v", "i", "v", "v", "s", "b")(export_scatter_reduce)
    symbolics["::max_pool1d"] = functools.partial(export_max_pool1d, symbolics["::max_pool2d"])
    symbolics["::bernoulli"] = symbolic_opset9.bernoulli
    for name, export in (("::layer_norm", export_layer_norm), ("::_convolution_mode", export_convolution)):
        if not isinstance(symbolics[name], functools.partial):
            symbolics[name] = functools.partial(export, symbolics[name])


def export_attention(  # noqa: PLR0913, PLR0917  (the operator's own parameters)
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    scale: Any = None,
    enable_gqa: bool = False,  # noqa: FBT001, FBT002
) -> Any:
    """``scaled_dot_product_attention`` in parts, as PyTorch's documentation writes it out.

    Where ORTModule runs without us, what it can train is left as it is: plans measured here must be found there.
    """
    if runs_as_it_is(torch.__version__) and not dropout_p and not enable_gqa:
        export = symbolic_opset14.scaled_dot_product_attention
        return export(g, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if enable_gqa:
        key, value = (_repeat_heads(g, tensor, query) for tensor in (key, value))
    *front, before, last = range(helper._get_tensor_rank(key))  # noqa: SLF001
    swapped = g.op("Transpose", key, perm_i=[*front, last, before])
    scores = g.op("MatMul", g.op("Mul", query, _scale_of(g, query, scale)), swapped)
    dtype = _dtype_of(query)
    # Softmax of nothing but infinities is not a number; half of the range leaves room for the score it is added to.
    lowest = _constant(g, torch.finfo(dtype).min / 2, dtype=dtype)
    if is_causal:
        bias = g.op("Where", _causal_mask(g, query, key), _zero_like(g, query), lowest)
        return g.op("MatMul", _weights(g, g.op("Add", scores, bias), dropout_p), value)
    if helper._is_none(attn_mask):  # noqa: SLF001
        return g.op("MatMul", _weights(g, scores, dropout_p), value)
    if helper._is_bool(attn_mask):  # noqa: SLF001
        # The gradient of Where keeps the mask: ORT recomputes the softmax then, whatever the mask was made by.
        hidden, scores = g.op("Not", attn_mask), g.op("Where", attn_mask, scores, lowest)
    else:
        # ORT recomputes Equal, and no other comparison.
        hidden = g.op("Equal", attn_mask, _constant(g, -math.inf, dtype=_dtype_of(attn_mask)))
        scores = g.op("Add", scores, g.op("Where", hidden, lowest, attn_mask))
    attended = g.op("MatMul", _weights(g, scores, dropout_p), value)
    # PyTorch gives zeros where a query may look at nothing.
    sees_nothing = g.op("Cast", g.op("ReduceMin", g.op("Cast", hidden, to_i=FLOAT), axes_i=[-1]), to_i=BOOL)
    return g.op("Where", sees_nothing, _zero_like(g, query), attended)


def export_unflatten(g: Any, tensor: Any, dim: Any, sizes: Any) -> Any:
    """``Tensor.unflatten`` as a Reshape: the dimensions before stay, those behind are read from the tensor."""
    rank = helper._get_tensor_rank(tensor)  # noqa: SLF001
    axis = helper._get_const(dim, "i", "dim") % rank  # noqa: SLF001
    shape = g.op("Concat", _slice_shape(g, tensor, 0, axis), sizes, _slice_shape(g, tensor, axis + 1, LAST), axis_i=0)
    return g.op("Reshape", tensor, shape)


def export_layer_norm(export: Callable[..., Any], g: Any, tensor: Any, *arguments: Any) -> Any:
    """``layer_norm`` with ones for a missing weight and zeros for a missing bias; ``export`` is ORTModule's own."""
    shape, weight, bias, *rest = arguments
    like = tensor if helper._is_none(weight) else weight  # noqa: SLF001
    sizes = _sizes_of(shape)
    if math.prod(sizes) > LARGEST_SHARED:
        weight = _constant(g, torch.ones(sizes, dtype=_dtype_of(like))) if helper._is_none(weight) else weight  # noqa: SLF001
        bias = _constant(g, torch.zeros(sizes, dtype=_dtype_of(like))) if helper._is_none(bias) else bias  # noqa: SLF001
    elif helper._is_none(weight) or helper._is_none(bias):  # noqa: SLF001
        export = symbolic_opset9.layer_norm
    # Of the shape, either function wants to know how many dimensions it has, and no more.
    normalized = export(g, _cast_like(g, tensor, like), [1] * len(sizes), weight, bias, *rest)
    return _cast_like(g, normalized, tensor)


def export_rms_norm(g: Any, tensor: Any, shape: Any, weight: Any = None, epsilon: Any = None) -> Any:
    """``rms_norm``, in the type of its weight: the entries over the root of the mean of their squares."""
    like = tensor if helper._is_none(weight) else weight  # noqa: SLF001
    dtype, entries = _dtype_of(like), _cast_like(g, tensor, like)
    smallest = torch.finfo(dtype).eps if helper._is_none(epsilon) else helper._parse_arg(epsilon, "f")  # noqa: SLF001
    squares = g.op("Pow", entries, _constant(g, 2.0))
    mean = g.op("ReduceMean", squares, axes_i=list(range(-len(_sizes_of(shape)), 0)))
    root = g.op("Sqrt", g.op("Add", mean, _constant(g, smallest, dtype=dtype)))
    normalized = g.op("Div", entries, root)
    weighted = normalized if helper._is_none(weight) else g.op("Mul", normalized, weight)  # noqa: SLF001
    return _cast_like(g, weighted, tensor)


def export_softplus(g: Any, tensor: Any, beta: float, threshold: float) -> Any:
    """``softplus``: the logarithm of one and an exponential, or where that is large the tensor itself."""
    dtype = _dtype_of(tensor)
    slope, most, one = (_constant(g, number, dtype=dtype) for number in (beta, threshold, 1.0))
    scaled = g.op("Mul", tensor, slope)
    is_large = g.op("Greater", scaled, most)
    # Where the other branch is taken, this one must not overflow: its gradient is multiplied with zero.
    exponential = g.op("Exp", g.op("Where", is_large, _zero_like(g, tensor), scaled))
    return g.op("Where", is_large, tensor, g.op("Div", g.op("Log", g.op("Add", exponential, one)), slope))


def export_logsumexp(g: Any, tensor: Any, dims: list[int], keepdim: int) -> Any:
    """``logsumexp``, one dimension after the other: the largest entry comes off before the exponentials are added."""
    rank = helper._get_tensor_rank(tensor)  # noqa: SLF001
    axes = sorted({dim % rank for dim in dims})
    for axis in axes:
        largest, _ = g.op("TopK", tensor, _constant(g, [1]), axis_i=axis, outputs=2)
        exponentials = g.op("Exp", g.op("Sub", tensor, largest))
        summed = g.op("ReduceSum", exponentials, _constant(g, [axis]), keepdims_i=1)
        tensor = g.op("Add", g.op("Log", summed), largest)
    return tensor if keepdim else g.op("Squeeze", tensor, _constant(g, axes))


def export_cumsum(g: Any, tensor: Any, dim: Any, dtype: Any = None) -> Any:
    """``cumsum``, of truth values as of whole numbers: transformers 5 counts packed sequences so for causal masks."""
    numbers = g.op("Cast", tensor, to_i=INT64) if helper._is_bool(tensor) else tensor  # noqa: SLF001
    return symbolic_opset11.cumsum(g, numbers, dim, dtype)


def export_diff(g: Any, tensor: Any, n: int, dim: int, prepend: Any, append: Any) -> Any:  # noqa: PLR0913, PLR0917
    """``diff``, which torch does not export: each entry less the one before it, ``n`` times over."""
    parts = [part for part in (prepend, tensor, append) if not helper._is_none(part)]  # noqa: SLF001
    tensor = g.op("Concat", *parts, axis_i=dim) if len(parts) > 1 else tensor
    for _ in range(n):
        tensor = g.op("Sub", _slice(g, tensor, dim, 1, LAST), _slice(g, tensor, dim, 0, -1))
    return tensor


def _slice(g: Any, tensor: Any, *places: int) -> Any:
    axis, start, end = (_constant(g, [place]) for place in places)
    return g.op("Slice", tensor, start, end, axis)


def export_max_pool1d(export: Callable[..., Any], g: Any, tensor: Any, *arguments: Any) -> Any:
    """``max_pool1d`` as ``max_pool2d`` over one row, for which ``export`` is ORTModule's own function."""
    *sizes, ceil_mode = arguments
    kernel, stride, padding, dilation = (helper._parse_arg(size, "is") for size in sizes)  # noqa: SLF001
    pairs = ([1, *kernel], [1, *(stride or kernel)], [0, *padding], [1, *dilation])
    before_last = _constant(g, [-2])
    row = g.op("Unsqueeze", tensor, before_last)
    pooled = export(g, row, *(_constant(g, pair) for pair in pairs), ceil_mode)
    return g.op("Squeeze", pooled, before_last)


def export_convolution(export: Callable[..., Any], g: Any, *arguments: Any) -> Any:
    """``_convolution_mode``, whose padding is a word; ``export`` is ORTModule's own.

    Raises:
        RuntimeError: ORT's gradient of it would be wrong, as it takes no notice of the word (seen on 1.19.2).
    """
    *_, padding, _dilation, _groups = arguments
    word = helper._parse_arg(padding, "s")  # noqa: SLF001
    if word != "valid":
        raise RuntimeError(
            f'ORT computes wrong gradients for a convolution with padding="{word}". Give its padding in numbers.'
        )
    return export(g, *arguments)


def _weights(g: Any, scores: Any, dropout_p: float) -> Any:
    weights = g.op("Softmax", scores, axis_i=-1)
    if dropout_p == 0:
        return weights
    # ORT's gradient of Dropout reads its second output.
    share, is_training = _constant(g, dropout_p), _constant(g, value=True)
    return g.op("Dropout", weights, share, is_training, outputs=2)[0]


def _scale_of(g: Any, query: Any, scale: Any) -> Any:
    if helper._is_none(scale):  # noqa: SLF001
        # ORT knows the width where torch's exporter does not, and makes this a number within the matmul.
        width = g.op("Cast", _slice_shape(g, query, -1, LAST), to_i=FLOAT)
        scale = g.op("Reciprocal", g.op("Sqrt", width))
    number = helper._maybe_get_const(scale, "f")  # noqa: SLF001
    if isinstance(number, float):
        return _constant(g, number, dtype=_dtype_of(query))
    return _cast_like(g, scale, query)


def _causal_mask(g: Any, query: Any, key: Any) -> Any:
    size = g.op("Concat", _slice_shape(g, query, -2, -1), _slice_shape(g, key, -2, -1), axis_i=0)
    return g.op("Cast", g.op("Trilu", g.op("Expand", _constant(g, torch.ones(())), size), upper_i=0), to_i=BOOL)


def _repeat_heads(g: Any, tensor: Any, query: Any) -> Any:
    *_, heads, _, width = helper._get_tensor_sizes(tensor)  # noqa: SLF001
    rank, wanted = helper._get_tensor_rank(tensor), helper._get_tensor_dim_size(query, -3)  # noqa: SLF001
    group = _constant(g, [*[1] * (rank - 2), wanted // heads, 1, 1])
    groups = g.op("Expand", g.op("Unsqueeze", tensor, _constant(g, [rank - 2])), group)
    return g.op("Reshape", groups, _constant(g, [*[0] * (rank - 3), wanted, -1, width]))


def _sizes_of(shape: Any) -> list[int]:
    """Return the entries of a shape, 0 for those that are known only when the graph runs."""
    if not helper._is_packed_list(shape):  # noqa: SLF001
        return helper._parse_arg(shape, "is")  # type: ignore[no-any-return]  # noqa: SLF001
    numbers = (helper._maybe_get_const(entry, "i") for entry in helper._unpack_list(shape))  # noqa: SLF001
    return [number if isinstance(number, int) else 0 for number in numbers]


def _cast_like(g: Any, value: Any, tensor: Any) -> Any:
    found, wanted = (helper._try_get_scalar_type(each) for each in (value, tensor))  # noqa: SLF001
    return value if found == wanted else g.op("Cast", value, to_i=wanted.onnx_type())
