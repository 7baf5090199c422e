"""The identity of a training graph: a digest of what it computes, whatever its values and nodes are called.

Each node is labelled by its operator, its attributes and the labels of what it reads, then by what reads it, and once
more by both: two graphs of the same operators that are wired otherwise have other labels. What varies between exports
of one model is left out: names, memory addresses, the order of nodes and inputs, and that of operands which commute.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROUNDS = 2
"""After the first, a node knows all that it comes from; after the second, who else reads that."""

SMALL_CONSTANT_BYTES = 1024
"""What is larger is data: its type and shape stand for it."""

COMMUTING = frozenset({"Add", "And", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"})
"""Operators whose operands ORT lists in any order."""

WITHOUT_MEANING = frozenset({"comment", "input_pointer_scalars"})
"""Attributes of ORT's ``PythonOp``: words for people, and the memory addresses of Python objects."""

ABSENT = "absent"
"""Stands for an optional operand that a node goes without."""


def digest_graph(graph: Any) -> str:
    """Sixty-four hexadecimal digits, equal for graphs that compute the same in the same way.

    Args:
        graph: An ONNX ``GraphProto``; its nodes are in topological order, as ONNX demands.
    """
    leaves = _describe_leaves(graph)
    kinds = [_describe_node(node) for node in graph.node]
    of_leaves, of_nodes = leaves, kinds
    for _ in range(ROUNDS):
        values, nodes = _label_by_origin(graph, of_leaves, of_nodes)
        of_leaves, of_nodes = _label_by_readers(graph, values, nodes)
    outputs = [values.get(value.name, ABSENT) for value in graph.output]
    parts = (of_nodes, of_leaves.values(), outputs)
    return _hash(*(_hash(*_counted(part)) for part in parts))


def _label_by_origin(graph: Any, leaves: dict[str, str], nodes: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the labels of all values and of the nodes, refined by what each comes from."""
    values, labels = dict(leaves), []
    for node, kind in zip(graph.node, nodes, strict=True):
        operands = [values.get(name, ABSENT) for name in _operands(node)]
        label = _hash(kind, *(sorted(operands) if _commutes(node) else operands))
        values |= {name: _hash(label, str(place)) for place, name in enumerate(node.output) if name}
        labels.append(label)
    return values, labels


def _label_by_readers(graph: Any, values: dict[str, str], nodes: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the labels of the leaves and of the nodes, refined by who reads what is made of each."""
    readers: dict[str, list[str]] = defaultdict(list)
    for value in graph.output:
        readers[value.name].append("whoever runs the graph")
    labels = list(nodes)
    for index, node in reversed(list(enumerate(graph.node))):
        made = (_hash(*sorted(readers[name])) if name else ABSENT for name in node.output)
        labels[index] = _hash(nodes[index], *made)
        for place, name in enumerate(_operands(node)):
            readers[name].append(_hash(labels[index], "any" if _commutes(node) else str(place)))
    own = (*(value.name for value in graph.input), *(constant.name for constant in graph.initializer))
    return {name: _hash(values[name], *sorted(readers[name])) for name in own}, labels


def _describe_leaves(graph: Any) -> dict[str, str]:
    inputs = {value.name: _describe_input(value.type.tensor_type) for value in graph.input}
    return inputs | {constant.name: _describe_constant(constant) for constant in graph.initializer}


def _describe_node(node: Any) -> str:
    attributes = sorted(
        (attribute.name, _describe_attribute(attribute))
        for attribute in node.attribute
        if attribute.name not in WITHOUT_MEANING
    )
    return _hash(node.domain, node.op_type, *(text for pair in attributes for text in pair))


def _describe_attribute(attribute: Any) -> str:
    import onnx

    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case onnx.AttributeProto.TENSOR:
            return _describe_constant(value)
        case onnx.AttributeProto.GRAPH:
            return digest_graph(value)
        case onnx.AttributeProto.GRAPHS:
            return _hash(*map(digest_graph, value))
        case _:
            return repr(value)


def _describe_input(tensor: Any) -> str:
    # A symbolic dimension's name is one of several aliases that vary between runs: only its place is kept.
    shape = ("?" if dim.dim_param else dim.dim_value for dim in tensor.shape.dim)
    return _describe(tensor.elem_type, shape)


def _describe_constant(constant: Any) -> str:
    import onnx

    described = _describe(constant.data_type, constant.dims)
    array = onnx.numpy_helper.to_array(constant)
    is_small = array.nbytes <= SMALL_CONSTANT_BYTES
    return f"{described} {hashlib.sha256(array.tobytes()).hexdigest()}" if is_small else described


def _describe(element_type: int, shape: Iterable[int | str]) -> str:
    return f"{element_type} {'x'.join(map(str, shape))}"


def _operands(node: Any) -> Iterator[str]:
    """Yield what a node reads: its inputs, and what the graphs in its attributes take from around it."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
            yield from _captured(graph)


def _captured(graph: Any) -> Iterator[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)}
    own |= {name for node in graph.node for name in node.output}
    yield from (name for node in graph.node for name in _operands(node) if name and name not in own)
    yield from (value.name for value in graph.output if value.name not in own)


def _commutes(node: Any) -> bool:
    return node.op_type in COMMUTING and not node.domain


def _counted(labels: Iterable[str]) -> list[str]:
    return [f"{label} {count}" for label, count in sorted(Counter(labels).items())]


def _hash(*texts: str) -> str:
    joined = "\0".join(texts)
    return hashlib.sha256(joined.encode(errors="surrogateescape")).hexdigest()
