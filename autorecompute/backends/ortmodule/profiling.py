"""Profiles a step: ONNX Runtime's own trace and graph, as a step without a word of ONNX Runtime in it."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.memory import Operation, Phase, StepProfile, Tensor
from autorecompute.plans.savings import BATCH, SEQUENCE, evaluate, simplify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


RECOMPUTED = "_recompute"
"""Ending of ORT's name of a node, and of its outputs, that it runs once more (``memory_optimizer.cc``)."""

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
    """Shapes of values that ORT inferred, filled up with those that were seen.

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


ALIASING = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
"""Operators whose kernels hand their input on under another shape (``Alias(0, 0)`` in their registrations)."""

YIELD = "YieldOp"
"""Operator at which ORTModule's graph hands over to PyTorch between its forward and its backward half."""

_KERNEL = "_kernel_time"
_RUN = "SequentialExecutor::Execute"
_MICRO = 1e-6
_HALVES = 2


class Profiler:
    """Makes sessions write their profiles, and reads them.

    Args:
        folder: Where ORT may write.
    """

    def __init__(self, folder: Path) -> None:
        self._graph = folder / "profiled.onnx"
        self._prefix = folder / "profile"

    def install(self, manager: Any, wants: Callable[[Any], bool]) -> None:
        """Have ORT's ``TrainingManager`` ask before it makes the options of a session.

        Args:
            manager: The class.
            wants: Whether the next session of one of its objects is to be profiled.
        """
        make_options = manager._get_session_config  # noqa: SLF001

        @functools.wraps(make_options)
        def make_and_tell(manager: Any) -> Any:
            options, *providers = make_options(manager)
            if wants(manager):
                options.enable_profiling = True
                options.profile_file_prefix = str(self._prefix)
                options.optimized_model_filepath = str(self._graph)
            return (options, *providers)

        manager._get_session_config = make_and_tell  # noqa: SLF001

    def take(self, manager: Any, names: Mapping[str, str]) -> StepProfile:
        """Return the last step of the manager's session, which ends its profile.

        Args:
            manager: ORT's ``TrainingManager`` whose session was prepared.
            names: What to call the symbolic dimensions instead of ORT's names.
        """
        import onnx

        events_file = Path(manager._execution_agent._inference_session.end_profiling())  # noqa: SLF001
        graph = onnx.load(self._graph, load_external_data=False).graph
        forward, backward = read_halves(json.loads(events_file.read_text(encoding="utf-8")))
        for file in (events_file, self._graph):
            file.unlink()
        return make_profile(graph, forward, backward, names)


@dataclass(frozen=True, slots=True)
class Run:
    """A node as the profiler saw it.

    Attributes:
        name: Its name.
        seconds: Wall time of its kernel.
        inputs: Type and shape of each input that it has.
        outputs: Type and shape of each output that it made.
    """

    name: str
    seconds: float = 0.0
    inputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()


def read_halves(events: Iterable[Mapping[str, Any]]) -> tuple[list[Run], list[Run]]:
    """Return the nodes of the last forward and of the last backward half, in the order they ran."""
    ordered = sorted(events, key=lambda event: event["ts"])
    runs = _outermost(event for event in ordered if event["name"] == _RUN)[-_HALVES:]
    assert len(runs) == _HALVES, "a step that was profiled has run forward and backward"
    kernels = [event for event in ordered if event["name"].endswith(_KERNEL)]
    forward, backward = (
        [_read_run(kernel) for kernel in kernels if run["ts"] <= kernel["ts"] <= run["ts"] + run["dur"]] for run in runs
    )
    return forward, backward


def _outermost(runs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Run that lie in no other: the branch of an ``If`` is a run within that of its graph."""
    found: list[Mapping[str, Any]] = []
    for run in runs:
        if not found or run["ts"] >= found[-1]["ts"] + found[-1]["dur"]:
            found.append(run)
    return found


def _read_run(event: Mapping[str, Any]) -> Run:
    return Run(
        name=event["name"].removesuffix(_KERNEL),
        seconds=event["dur"] * _MICRO,
        inputs=_read_types(event["args"]["input_type_shape"]),
        outputs=_read_types(event["args"]["output_type_shape"]),
    )


def _read_types(values: Iterable[Mapping[str, Sequence[int]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((kind, tuple(shape)) for value in values for kind, shape in value.items())


def make_profile(graph: Any, forward: Sequence[Run], backward: Sequence[Run], names: Mapping[str, str]) -> StepProfile:
    """Return the step that ran, in words that are not ORT's.

    Args:
        graph: The optimized graph as ONNX.
        forward: What ran before the hand-over to PyTorch.
        backward: What ran after it.
        names: What to call the symbolic dimensions instead of ORT's names.
    """
    nodes = {node.name: node for node in graph.node}
    between = next(node for node in graph.node if node.op_type == YIELD)
    # What runs in the branch of an ``If`` is no node of the graph: the ``If`` has its time and its outputs.
    forward, backward = ([run for run in half if run.name in nodes] for half in (forward, backward))
    runs = [*forward, Run(between.name), *backward]
    dims = read_dims(graph, _see_inputs(runs, nodes), names)
    lives = _Lives(graph, ShapeBook(graph, names, dims))
    operations = []
    for position, run in enumerate(runs):
        node = nodes[run.name]
        lives.run(position, node, run)
        phase = _phase(node, Phase.FORWARD if position < len(forward) else Phase.BACKWARD)
        operations.append(
            Operation(
                name=run.name,
                operator=node.op_type,
                phase=phase,
                seconds=run.seconds,
                reads=tuple(filter(None, node.input)),
                makes=tuple(filter(None, node.output)),
                shares=lives.shares(node),
                repeats=node.output[0].removesuffix(RECOMPUTED) if phase is Phase.RECOMPUTE else "",
            )
        )
    tensors = tuple(lives.end(len(runs)))
    return StepProfile(operations=tuple(operations), tensors=tensors, backward=len(forward), dims=dims)


def _see_inputs(runs: Iterable[Run], nodes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every value that a node has read."""
    return {
        name: shape
        for run in runs
        for name, (_, shape) in zip(filter(None, nodes[run.name].input), run.inputs, strict=False)
    }


def _phase(node: Any, half: Phase) -> Phase:
    if node.name.endswith(RECOMPUTED):
        return Phase.RECOMPUTE
    return Phase.LOSS if "Loss" in node.op_type or node.op_type == YIELD else half


class _Lives:
    """Follows each piece of memory from the node that makes it to the last one that reads it."""

    def __init__(self, graph: Any, shapes: ShapeBook) -> None:
        self._shapes = shapes
        self._outside = {value.name for value in graph.input} | {constant.name for constant in graph.initializer}
        self._results = {value.name for value in graph.output}
        self._owner: dict[str, str] = {}
        self._made: dict[str, tuple[int, tuple[str, ...], int]] = {}
        self._read: dict[str, int] = {}

    def run(self, position: int, node: Any, run: Run) -> None:
        """Add one node, at its position in the step."""
        for name in filter(None, node.input):
            self._read[self._owned(name)] = position
        outputs = [name for name in node.output if name]
        if node.op_type == YIELD:
            self._take_gradients(position, node, outputs)
            return
        for place, (name, (kind, shape)) in enumerate(zip(outputs, run.outputs, strict=False)):
            if place == 0 and self.shares(node):
                self._owner[name] = self._owned(node.input[0])
            else:
                self._made[name] = (position, self._shapes.shape_of(name, shape), bytes_of_element(kind))

    def shares(self, node: Any) -> bool:
        """Tell whether the node's result is its input under another shape; a result of the graph is a copy."""
        return node.op_type in ALIASING and node.output[0] not in self._results

    def end(self, position: int) -> list[Tensor]:
        """Return all that lived, where the step ends at this position."""
        for name in self._results:
            self._read[self._owned(name)] = position
        # ORT frees a value when its last reader is done: one that nobody reads, such as the mask of a Dropout that is
        # recomputed, stays until the step is over.
        return [
            Tensor(name=name, shape=shape, element_bytes=size, first=first, last=self._read.get(name, position))
            for name, (first, shape, size) in self._made.items()
            if name not in self._outside
        ]

    def _take_gradients(self, position: int, node: Any, outputs: Sequence[str]) -> None:
        # PyTorch hands over a gradient for each output of the model, of that output's shape.
        for source, name in zip(node.input, outputs, strict=False):
            if (made := self._made.get(self._owned(source))) is not None:
                self._made[name] = (position, *made[1:])

    def _owned(self, name: str) -> str:
        return self._owner.get(name, name)
