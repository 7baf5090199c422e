import pytest

from autorecompute.backends.ortmodule.profiling import make_profile
from autorecompute.memory import Phase

onnx = pytest.importorskip("onnx")

FLOAT = onnx.TensorProto.FLOAT
NAMES = {"input_dim0": "batch"}

NODES = [
    ("Dropout", "drop", ["input"], ["dropped", "mask"]),
    ("Reshape", "flatten", ["dropped", "shape"], ["flat"]),
    ("MatMul", "project", ["flat", "weight"], ["logits"]),
    ("YieldOp", "YieldOp", ["logits"], ["logits_grad"]),
    ("Dropout", "drop_recompute", ["input"], ["dropped_recompute", "mask_recompute"]),
    ("MatMul", "weight_grad", ["dropped_recompute", "logits_grad"], ["weight_gradient"]),
    ("DropoutGrad", "drop_grad", ["logits_grad", "mask_recompute"], ["input_gradient"]),
]
SHAPES = {
    **dict.fromkeys(("input", "dropped", "mask", "dropped_recompute", "mask_recompute", "input_gradient"), (6, 8)),
    **dict.fromkeys(("logits", "logits_grad"), (6, 5)),
    **dict.fromkeys(("weight", "weight_gradient"), (8, 5)),
    "shape": (1,),
    "flat": (48,),
}
TYPES = dict.fromkeys(("mask", "mask_recompute"), "bool")
FORWARD, BACKWARD = NODES[:3], NODES[4:]
TYPE_FIELDS = ("input_type_shape", "output_type_shape")


helper = onnx.helper
KNOWN = {"dropped": ["input_dim0", 8], "logits": ["input_dim0", 5], "mask": ["input_dim0", 8]}
GRAPH = helper.make_graph(
    [helper.make_node(operator, read, made, name=name) for operator, name, read, made in NODES],
    "step",
    [helper.make_tensor_value_info("input", FLOAT, ["input_dim0", 8])],
    [helper.make_tensor_value_info("weight_gradient", FLOAT, [8, 5])],
    [
        helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [-1]),
        helper.make_tensor("weight", FLOAT, [8, 5], [0.0] * 40),
    ],
    value_info=[helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in KNOWN.items()],
)


def make_events(start, nodes):
    events = []
    for place, (_, name, read, made) in enumerate(nodes):
        types = [[{TYPES.get(value, "float"): SHAPES[value]} for value in values] for values in (read, made)]
        arguments = dict(zip(TYPE_FIELDS, types, strict=True))
        events.append({"name": f"{name}_fence_before", "ts": start + 10 * place, "dur": 0, "args": {}})
        events.append({"name": f"{name}_kernel_time", "ts": start + 10 * place, "dur": 7, "args": arguments})
    whole = {"name": "SequentialExecutor::Execute", "ts": start - 1, "dur": 10 * len(nodes), "args": {}}
    branch = {"name": "SequentialExecutor::Execute", "ts": start + 1, "dur": 2, "args": {}}
    inner = {"name": "Identity_7_kernel_time", "ts": start + 2, "dur": 1, "args": dict.fromkeys(TYPE_FIELDS, ())}
    return [*events, inner, branch, whole]


STEPS = [(0, FORWARD), (100, BACKWARD), (1000, FORWARD), (1100, BACKWARD)]
PROFILE = make_profile(GRAPH, [event for step in STEPS for event in make_events(*step)], NAMES)
TENSORS = {tensor.name: tensor for tensor in PROFILE.tensors}


def test_the_last_step_is_told_in_its_order_and_by_its_phases():
    operations = PROFILE.operations
    told = {operation.name: (operation.reads, operation.makes) for operation in operations}
    assert list(told.items()) == [(name, (tuple(read), tuple(made))) for _, name, read, made in NODES]
    assert [operation.key for operation in operations] == [made[0] for _, _, _, made in NODES]
    assert [operation.seconds for operation in operations] == pytest.approx([7e-6] * 3 + [0] + [7e-6] * 3)
    assert PROFILE.dims == {"batch": 6}
    phases = [operation.phase for operation in PROFILE.operations]
    assert phases == [*[Phase.FORWARD] * 3, Phase.LOSS, Phase.RECOMPUTE, *[Phase.BACKWARD] * 2]
    assert PROFILE.backward == 3
    assert [operation.repeats for operation in PROFILE.operations] == ["", "", "", "", "dropped", "", ""]


def test_tensors_of_the_step_have_the_life_and_the_shape_that_can_be_known():
    """ORT frees with the last reader of any name: a mask without one is held as long as a gradient for PyTorch.

    What is recomputed is as large as the first time, a gradient as what it is of; a batch may divide a size.
    """
    lives = {name: (tensor.first, tensor.last) for name, tensor in TENSORS.items()}
    assert (lives["dropped"], lives["logits_grad"][1]) == ((0, 2), 6)
    assert (lives["mask"], lives["weight_gradient"]) == ((0, 7), (5, 7))
    assert not {"input", "shape", "weight", "flat"} & set(TENSORS)
    assert TENSORS["dropped_recompute"].shape == TENSORS["mask_recompute"].shape == ("batch", "8")
    assert (TENSORS["dropped_recompute"].element_bytes, TENSORS["mask_recompute"].element_bytes) == (4, 1)
    assert TENSORS["logits_grad"].shape == TENSORS["logits"].shape == ("batch", "5")
    assert TENSORS["input_gradient"].shape == ("1*batch", "8")
    assert TENSORS["weight_gradient"].shape == ("8", "5")


def test_a_result_under_another_shape_is_a_copy():
    events = [event for start, nodes in ((0, FORWARD), (100, BACKWARD)) for event in make_events(start, nodes)]
    handed_out = onnx.GraphProto()
    handed_out.CopyFrom(GRAPH)
    handed_out.output.append(onnx.helper.make_tensor_value_info("flat", FLOAT, [48]))
    shares = [
        [operation.name for operation in make_profile(each, events, NAMES).operations if operation.shares]
        for each in (GRAPH, handed_out)
    ]
    assert shares == [["flatten"], []]
