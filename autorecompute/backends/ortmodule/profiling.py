"""Profiles a step: ONNX Runtime's own trace and graph, as a step without a word of ONNX Runtime in it."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.backends.ortmodule.adapter import put_around
from autorecompute.memory import Operation, Phase, StepProfile, Tensor
from autorecompute.plans.savings import BATCH, SEQUENCE, evaluate, simplify

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    ShapeOf = Callable[[str, Sequence[int]], tuple[str, ...]]
    _Step = tuple[Any, list[tuple[str, Sequence[int]]]]
    """A node that ran, and type and shape of each output that it made."""


RECOMPUTED = "_recompute"  # ending of a node that ORT runs once more, and of its outputs (memory_optimizer.cc)
BYTES = {
    **dict.fromkeys(("bool", "int8", "uint8", "float8e4m3fn", "float8e5m2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float"), 4),
    **dict.fromkeys(("int64", "uint64", "double"), 8),
}
"""Bytes of one element of a type, by ORT's word for it; not of strings and what is no number."""

ALIASING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose kernels hand their input on under another shape (``Alias(0, 0)`` in their registrations)."""

YIELD = "YieldOp"  # operator at which ORTModule's graph hands over to PyTorch between its forward and its backward half

_KERNEL, _RUN = "_kernel_time", "SequentialExecutor::Execute"
_MICRO, _HALVES = 1e-6, 2
_GRAPH_FILE = "profiled.onnx"


def follow_options(managers: Any, folder: Path, wants: Callable[[Any], bool]) -> None:
    """Have sessions of ``TrainingManager``, the class, write their profiles into the folder where that is wanted."""

    @put_around(managers, "_get_session_config")
    def make_options(make: Callable[[Any], Any], manager: Any) -> Any:
        options, *providers = make(manager)
        if wants(manager):
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")
            options.optimized_model_filepath = str(folder / _GRAPH_FILE)
        return (options, *providers)


def take_profile(manager: Any, folder: Path, names: Mapping[str, str]) -> StepProfile:
    """Return the last step of the manager's session, which ends its profile."""
    import onnx

    events_file = Path(manager._execution_agent._inference_session.end_profiling())  # noqa: SLF001
    graph = onnx.load(folder / _GRAPH_FILE, load_external_data=False).graph
    events = json.loads(events_file.read_text(encoding="utf-8"))
    for file in (events_file, folder / _GRAPH_FILE):
        file.unlink()
    return make_profile(graph, events, names)


def make_profile(graph: Any, events: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> StepProfile:
    """Return the last step of ORT's trace on an optimized graph; ``names`` has our names of ORT's dimensions."""
    nodes = {node.name: node for node in graph.node}
    between = next(node for node in graph.node if node.op_type == YIELD)
    # What runs in the branch of an ``If`` is no node of the graph: the ``If`` has its time and its outputs.
    forward, backward = ([run for run in half if _name_of(run) in nodes] for half in _read_halves(events))
    runs: list[Mapping[str, Any]] = [*forward, {"name": between.name, "dur": 0, "args": {}}, *backward]
    dims = _read_dims(graph, runs, nodes, names)
    results = {value.name for value in graph.output}
    steps = [(nodes[_name_of(run)], _types(run, "output")) for run in runs]
    tensors = tuple(_follow_memory(graph, steps, results, _shapes_in(graph, names, dims)))
    operations = []
    for position, (run, (node, _)) in enumerate(zip(runs, steps, strict=True)):
        phase = _phase(node, Phase.FORWARD if position < len(forward) else Phase.BACKWARD)
        operations.append(
            Operation(
                name=node.name,
                operator=node.op_type,
                phase=phase,
                seconds=run["dur"] * _MICRO,
                reads=tuple(filter(None, node.input)),
                makes=tuple(filter(None, node.output)),
                shares=_shares(node, results),
                repeats=node.output[0].removesuffix(RECOMPUTED) if phase is Phase.RECOMPUTE else "",
            )
        )
    return StepProfile(operations=tuple(operations), tensors=tensors, backward=len(forward), dims=dims)


def _read_halves(events: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the kernels of the last forward and of the last backward half, in the order they ran."""
    ordered = sorted(events, key=lambda event: event["ts"])
    halves: list[Mapping[str, Any]] = []
    for event in ordered:
        # The branch of an ``If`` is a run within that of its graph.
        if event["name"] == _RUN and (not halves or event["ts"] >= halves[-1]["ts"] + halves[-1]["dur"]):
            halves.append(event)
    assert len(halves) >= _HALVES, "a step that was profiled has run forward and backward"
    kernels = [event for event in ordered if event["name"].endswith(_KERNEL)]
    return [
        [kernel for kernel in kernels if half["ts"] <= kernel["ts"] <= half["ts"] + half["dur"]]
        for half in halves[-_HALVES:]
    ]


def _name_of(run: Mapping[str, Any]) -> str:
    return str(run["name"].removesuffix(_KERNEL))


def _types(run: Mapping[str, Any], side: str) -> list[tuple[str, Sequence[int]]]:
    """Return type and shape of each ``input`` that the node had, or of each ``output`` that it made."""
    return [pair for value in run["args"].get(f"{side}_type_shape", ()) for pair in value.items()]


def _read_dims(
    graph: Any, runs: Iterable[Mapping[str, Any]], nodes: Mapping[str, Any], names: Mapping[str, str]
) -> dict[str, int]:
    """Return the symbolic dimensions of the model's inputs, as they were in one step."""
    seen = {
        name: shape
        for run in runs
        for name, (_, shape) in zip(filter(None, nodes[_name_of(run)].input), _types(run, "input"), strict=False)
    }
    return {
        names.get(text, text): size
        for value in graph.input
        for text, size in zip(_read_shape(value), seen.get(value.name, ()), strict=False)
        if text and not text.isdecimal()
    }


def _read_shape(value: Any) -> tuple[str, ...]:
    """Return the sizes in an ONNX value's type: numbers, expressions, and nothing where one is not known."""
    return tuple(size.dim_param or str(size.dim_value or "") for size in value.type.tensor_type.shape.dim)


def _shapes_in(graph: Any, names: Mapping[str, str], dims: Mapping[str, int]) -> ShapeOf:
    """Return what tells a value's sizes as expressions that agree with what was seen.

    Where ORT inferred nothing, a first size that the batch divides grows with the batch, and with the sequence where
    that divides the rest; every other size is constant.
    """
    inferred = {value.name: _read_shape(value) for value in (*graph.value_info, *graph.input, *graph.output)}
    growing = [name for name in (BATCH, SEQUENCE) if dims.get(name, 0) > 1]

    @functools.cache
    def express(text: str) -> tuple[str, int | None]:
        simple = simplify(text, names)
        return simple, evaluate(simple, dims)

    def guess(place: int, seen: int) -> str:
        for known in (growing, growing[:1]) if place == 0 and BATCH in growing else ():
            size = math.prod(dims[name] for name in known)
            if seen % size == 0:
                return "*".join([str(seen // size), *known])
        return str(seen)

    def shape_of(name: str, seen: Sequence[int]) -> tuple[str, ...]:
        known = inferred.get(name) or inferred.get(name.removesuffix(RECOMPUTED)) or ()
        texts = known if len(known) == len(seen) else [""] * len(seen)
        sizes = []
        for place, (text, size) in enumerate(zip(texts, seen, strict=True)):
            expression, value = express(text) if text else ("", None)
            sizes.append(expression if value == size else guess(place, size))
        return tuple(sizes)

    return shape_of


def _phase(node: Any, half: Phase) -> Phase:
    if node.name.endswith(RECOMPUTED):
        return Phase.RECOMPUTE
    return Phase.LOSS if "Loss" in node.op_type or node.op_type == YIELD else half


def _follow_memory(graph: Any, steps: Sequence[_Step], results: Collection[str], shape_of: ShapeOf) -> Iterator[Tensor]:
    """Yield each piece of memory, from the node that makes it to the last one that reads it."""
    outside = {value.name for value in graph.input} | {constant.name for constant in graph.initializer}
    owner: dict[str, str] = {}
    made: dict[str, tuple[int, tuple[str, ...], int]] = {}
    read: dict[str, int] = {}
    for position, (node, types) in enumerate(steps):
        for name in filter(None, node.input):
            read[owner.get(name, name)] = position
        outputs = [name for name in node.output if name]
        if node.op_type == YIELD:
            # PyTorch hands over a gradient for each output of the model, of that output's shape.
            of_outputs = (made.get(owner.get(source, source)) for source in node.input)
            made |= {name: (position, *one[1:]) for name, one in zip(outputs, of_outputs, strict=False) if one}
            continue
        for place, (name, (kind, sizes)) in enumerate(zip(outputs, types, strict=False)):
            if place == 0 and _shares(node, results):
                owner[name] = owner.get(node.input[0], node.input[0])
            else:
                made[name] = (position, shape_of(name, sizes), BYTES.get(kind, 0))
    read |= dict.fromkeys((owner.get(name, name) for name in results), len(steps))
    # ORT frees a value when its last reader is done: one that nobody reads, such as the mask of a Dropout that is
    # recomputed, stays until the step is over.
    for name, (first, shape, size) in made.items():
        if name not in outside:
            last = read.get(name, len(steps))
            yield Tensor(name=name, shape=shape, element_bytes=size, first=first, last=last)


def _shares(node: Any, results: Collection[str]) -> bool:
    """Tell whether the node's result is its input under another shape; a result of the graph is a copy."""
    return node.op_type in ALIASING and node.output[0] not in results
