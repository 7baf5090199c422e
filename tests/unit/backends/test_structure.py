"""Which training graphs are the same: what may change without changing the digest, and what may not."""

import random
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autorecompute.backends.ortmodule.structure import digest_graph

NO_WORDS = {}


def renamed(graph, prefix):
    """The same graph with every value and node called something else."""
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
    """The same graph with its inputs and constants in another order, and its nodes in another that is topological."""
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
    """A chain of layers with a shortcut around each."""
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


def rewired(graph, index, place, name):
    """The same graph where one node reads something else."""
    copy = onnx.GraphProto()
    copy.CopyFrom(graph)
    copy.node[index].input[place] = name
    return copy


@pytest.mark.parametrize(
    "same",
    [
        renamed(mlp(), "encoder.layer."),
        renamed(renamed(mlp(), "_"), "model/"),
        shuffled(mlp(), 1),
        shuffled(renamed(mlp(), "m."), 2),
        mlp(batch="a_name_that_ORT_gave_dim0"),
    ],
)
def test_names_and_order_do_not_count(same):
    """What values and nodes are called, and the order they are listed in, is none of the graph's."""
    assert digest_graph(same) == digest_graph(mlp())


def test_the_same_constant_may_be_written_in_two_ways():
    """ONNX writes a number as raw bytes or as a number."""
    raw = mlp()
    raw.initializer[0].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(raw.initializer[0]), "scale"))
    assert raw.initializer[0].raw_data
    assert not mlp().initializer[0].raw_data
    assert digest_graph(raw) == digest_graph(mlp())


def test_operands_that_commute_do_so():
    """ORT sums gradients in any order."""
    graph = mlp()
    swapped = rewired(rewired(graph, 2, 0, "x"), 2, 1, "a0")
    assert digest_graph(swapped) == digest_graph(graph)


@pytest.mark.parametrize(
    "other",
    [
        mlp(layers=3),
        mlp(width=16),
        mlp(dtype=TensorProto.FLOAT16),
        mlp(activation="Sigmoid"),
        mlp(scale=0.25),
        mlp(batch=4),
        mlp(activation="LeakyRelu", attributes={"alpha": 0.1}),
    ],
    ids=["layers", "width", "dtype", "activation", "constant", "fixed batch", "attribute"],
)
def test_each_part_of_the_graph_counts(other):
    """Another layer count, width, type, activation, constant, shape or attribute is another graph."""
    assert digest_graph(other) != digest_graph(mlp())


def test_an_attributes_value_counts():
    """The same operator with another attribute is another."""
    first, second = (mlp(activation="LeakyRelu", attributes={"alpha": alpha}) for alpha in (0.1, 0.2))
    assert digest_graph(first) != digest_graph(second)


@pytest.mark.parametrize(
    ("index", "place", "name"),
    [(5, 1, "x"), (5, 1, "a0"), (3, 0, "a0"), (4, 0, "m0"), (3, 1, "w0")],
    ids=["longer shortcut", "shorter shortcut", "layer without shortcut", "activation of another", "shared weight"],
)
def test_the_same_operators_wired_otherwise_are_another_graph(index, place, name):
    """A changed connection counts, though there are as many operators, inputs and constants of each kind."""
    assert digest_graph(rewired(mlp(), index, place, name)) != digest_graph(mlp())


def test_operands_that_do_not_commute_keep_their_places():
    """What is taken from what makes a difference."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "aby"]
    graph = helper.make_graph(
        [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Sub", ["r", "b"], ["y"])], "", values[:2], values[2:]
    )
    turned = rewired(rewired(graph, 1, 0, "b"), 1, 1, "r")
    assert digest_graph(turned) != digest_graph(graph)


def test_one_value_read_twice_is_not_two_values_alike():
    """What two readers share is kept once: a graph that computes it for each of them keeps it twice."""
    x, y, z = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xyz")
    first, second = (helper.make_node("Relu", ["x"], [f"r{number}"]) for number in (1, 2))

    def read(left, right):
        ends = [helper.make_node("Exp", [left], ["y"]), helper.make_node("Exp", [right], ["z"])]
        return helper.make_graph([first, second, *ends], "", [x], [y, z])

    assert digest_graph(read("r1", "r2")) != digest_graph(read("r1", "r1"))


def test_memory_addresses_do_not_count():
    """ORT's PythonOp holds the addresses of its Python arguments, which are others in each process."""

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
    """A graph in which one of two graphs runs, which reads a value from around it."""
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "z", "y", "inner")}
    inner = helper.make_graph([helper.make_node(operator, [captured], ["inner"])], "", [], [values["inner"]])
    asked = helper.make_tensor_value_info("is_so", TensorProto.BOOL, [])
    nodes = [
        helper.make_node("Exp", ["z"], ["e"]),
        helper.make_node("If", ["is_so"], ["y"], then_branch=inner, else_branch=inner),
    ]
    return helper.make_graph(nodes, "", [asked, values["x"], values["z"]], [values["y"]])


def test_graphs_within_graphs_count():
    """What a branch computes, and what it takes from around it, is the graph's."""
    graph = branch("Relu", "x")
    assert digest_graph(branch("Relu", "x")) == digest_graph(graph)
    assert digest_graph(branch("Tanh", "x")) != digest_graph(graph)
    assert digest_graph(branch("Relu", "e")) != digest_graph(graph)


def test_another_process_with_another_hash_seed_says_the_same(tmp_path):
    """Nothing of a process gets into the digest."""
    file = tmp_path / "graph.onnx"
    file.write_bytes(mlp().SerializeToString())
    code = (
        "import sys, onnx; from autorecompute.backends.ortmodule.structure import digest_graph; "
        "graph = onnx.GraphProto(); graph.ParseFromString(open(sys.argv[1], 'rb').read()); print(digest_graph(graph))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code, str(file)],
            check=True,
            capture_output=True,
            text=True,
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": str(Path(__file__).parents[3])},
        ).stdout.strip()
        for seed in (1, 2)
    }
    assert told == {digest_graph(mlp())}
