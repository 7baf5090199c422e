import random

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autorecompute.backends.ortmodule.detection import digest_graph

NO_WORDS = {}


def renamed(graph, prefix):
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    for entry in (*copy.input, *copy.output, *copy.initializer, *copy.node):
        entry.name = f"{prefix}{entry.name}"
    for value in (*copy.input, *copy.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = f"{prefix}{dim.dim_param}"
    for node in copy.node:
        node.input[:] = [name and f"{prefix}{name}" for name in node.input]
        node.output[:] = [name and f"{prefix}{name}" for name in node.output]
        node.doc_string = f"{prefix}, line 12"
    return copy


def shuffled(graph, seed):
    chance, copy = random.Random(seed), onnx.GraphProto()
    copy.CopyFrom(graph)
    for entries in (copy.input, copy.initializer, copy.output):
        mixed = chance.sample(list(entries), len(entries))
        del entries[:]
        entries.extend(mixed)
    waiting, known = list(graph.node), {entry.name for entry in (*graph.input, *graph.initializer)} | {""}
    del copy.node[:]
    while waiting:
        node = chance.choice([node for node in waiting if known.issuperset(node.input)])
        waiting.remove(node)
        known.update(node.output)
        copy.node.append(node)
    return copy


def mlp(*, layers=2, width=8, dtype=TensorProto.FLOAT, activation="Relu", scale=0.5, batch="N", attributes=NO_WORDS):
    inputs = [helper.make_tensor_value_info("x", dtype, [batch, width])]
    nodes, last = [], "x"
    for layer in range(layers):
        inputs.append(helper.make_tensor_value_info(f"w{layer}", dtype, [width, width]))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], f"MatMul_{layer}"))
        nodes.append(helper.make_node(activation, [f"m{layer}"], [f"a{layer}"], f"Act_{layer}", **attributes))
        nodes.append(helper.make_node("Add", [f"a{layer}", last], [f"s{layer}"], f"Add_{layer}"))
        last = f"s{layer}"
    nodes.append(helper.make_node("Mul", [last, "scale"], ["y"], "Mul_0"))
    constant = helper.make_tensor("scale", dtype, [], [scale])
    output = helper.make_tensor_value_info("y", dtype, [batch, width])
    return helper.make_graph(nodes, "mlp", inputs, [output], [constant])


def rewired(graph, *changes):
    """The same graph where nodes read something else at a place."""
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    for index, place, name in changes:
        copy.node[index].input[place] = name
    return copy


@pytest.mark.parametrize(
    "same",
    [
        renamed(mlp(), "encoder.layer."),
        shuffled(renamed(mlp(), "m."), 1),
        mlp(batch="a_name_that_ORT_gave_dim0"),
        rewired(mlp(), (2, 0, "x"), (2, 1, "a0")),
    ],
    ids=["names", "order", "name of a dimension", "operands that commute"],
)
def test_names_and_order_do_not_count(same):
    """ORT sums gradients in any order, for one."""
    assert digest_graph(same) == digest_graph(mlp())


def test_graphs_within_graphs_count_and_a_constant_may_be_written_as_raw_bytes_or_as_a_number():
    raw = mlp()
    raw.initializer[0].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(raw.initializer[0]), "scale"))
    assert raw.initializer[0].raw_data
    assert not mlp().initializer[0].raw_data
    assert digest_graph(raw) == digest_graph(mlp())
    graph = branch("Relu", "x")
    assert digest_graph(branch("Relu", "x")) == digest_graph(graph)
    assert digest_graph(branch("Tanh", "x")) != digest_graph(graph)
    assert digest_graph(branch("Relu", "e")) != digest_graph(graph)


OTHERS = {
    "layers": mlp(layers=3),
    "width": mlp(width=16),
    "dtype": mlp(dtype=TensorProto.FLOAT16),
    "activation": mlp(activation="Sigmoid"),
    "constant": mlp(scale=0.25),
    "fixed batch": mlp(batch=4),
    "attribute": mlp(activation="LeakyRelu", attributes={"alpha": 0.1}),
    "value of an attribute": mlp(activation="LeakyRelu", attributes={"alpha": 0.2}),
    "longer shortcut": rewired(mlp(), (5, 1, "x")),
    "shorter shortcut": rewired(mlp(), (5, 1, "a0")),
    "layer without shortcut": rewired(mlp(), (3, 0, "a0")),
    "activation of another": rewired(mlp(), (4, 0, "m0")),
    "shared weight": rewired(mlp(), (3, 1, "w0")),
    "operands that do not commute": rewired(mlp(), (3, 0, "w1"), (3, 1, "s0")),
}


def test_each_part_of_the_graph_counts_and_one_value_read_twice_is_not_two_alike():
    digests = {name: digest_graph(graph) for name, graph in {"the graph": mlp(), **OTHERS}.items()}
    assert len(set(digests.values())) == len(digests), digests
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyz")
    first, second = (helper.make_node("Relu", ["x"], [f"r{number}"]) for number in (1, 2))

    def read(left, right):
        ends = [helper.make_node("Exp", [left], ["y"]), helper.make_node("Exp", [right], ["z"])]
        return helper.make_graph([first, second, *ends], "", [x], [y, z])

    assert digest_graph(read("r1", "r2")) != digest_graph(read("r1", "r1"))


def test_memory_addresses_do_not_count():
    def call(address, **attributes):
        node = helper.make_node(
            "PythonOp", ["x"], ["ctx", "y"], domain="com.microsoft", input_pointer_scalars=[address], **attributes
        )
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
        return helper.make_graph([node], "", values[:1], values[1:])

    first = digest_graph(call(140237, func_name="m.Scale"))
    assert first == digest_graph(call(99, func_name="m.Scale", comment="layer 3"))
    assert first != digest_graph(call(140237, func_name="m.Shift"))


def branch(operator, captured):
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "z", "y", "inner")}
    inner = helper.make_graph([helper.make_node(operator, [captured], ["inner"])], "", [], [values["inner"]])
    asked = helper.make_tensor_value_info("is_so", TensorProto.BOOL, [])
    nodes = [
        helper.make_node("Exp", ["z"], ["e"]),
        helper.make_node("If", ["is_so"], ["y"], then_branch=inner, else_branch=inner),
    ]
    return helper.make_graph(nodes, "", [asked, values["x"], values["z"]], [values["y"]])
