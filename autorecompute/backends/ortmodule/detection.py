"""Reads plans, dimensions and the graph's structure from the objects of a live ORTModule, never from its logs."""

from __future__ import annotations

import hashlib
import inspect
import json
import platform
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil

from autorecompute.measurement import Detection, Device
from autorecompute.plans import Plan
from autorecompute.plans.savings import evaluate, simplify

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

IGNORING_LAYERS, WITHIN_LAYERS = "1:0", "1:1"
"""ORT's probe configs: all recomputable operators, without or with regard to transformer layer boundaries."""

SMALL_CONSTANT_BYTES = 1024


def detect(manager: Any) -> Detection:
    """What can be recomputed in a training session that was built without recompute.

    Args:
        manager: ORT's ``TrainingManager`` whose execution agent was just created.
    """
    observer = manager._runtime_inspector.memory_ob  # noqa: SLF001
    dims = {str(symbol): int(value) for symbol, value in observer.symbolic_dim_name_to_value_map.items()}
    plans, layer_plans = (
        probe_plans(manager._execution_agent, probe, dims)  # noqa: SLF001
        for probe in (IGNORING_LAYERS, WITHIN_LAYERS)
    )
    return Detection(
        plans=plans,
        layer_plans=layer_plans,
        dims=dims,
        graph=digest_graph(manager._onnx_models.optimized_model.graph),  # noqa: SLF001
        device=describe_device(manager._device),  # noqa: SLF001
        versions=read_versions(),
    )


def probe_plans(agent: Any, probe: str, dims: Mapping[str, int]) -> tuple[Plan, ...]:
    """The plans ORT finds under a probe config, largest stated saving first."""
    stat = agent.get_serialized_ortmodule_memory_stat
    # ORT 1.19 added a flag for the printed table; 1.17 and 1.18 always make it
    takes_table_flag = len(inspect.signature(stat).parameters) > len(("config", "probe"))
    _, found = stat("", probe, False) if takes_table_flag else stat("", probe)
    plans = [
        Plan.parse(key, frequency=frequency, saving_bytes=evaluate(raw, dims), saving_symbolic=simplify(raw))
        for key, (raw, frequency) in found.items()
    ]
    return tuple(sorted(plans, key=lambda plan: (-(plan.saving_bytes or 0), plan.key)))


def digest_graph(graph: Any) -> str:
    """A digest of operators, input types and shapes, and small constants; the same whatever the nodes are called."""
    operators = Counter(f"{node.domain}:{node.op_type}" for node in graph.node)
    inputs = Counter(_describe_input(value.type.tensor_type) for value in graph.input)
    constants = Counter(_describe_constant(constant) for constant in graph.initializer)
    structure = [sorted(counter.items()) for counter in (operators, inputs, constants)]
    return hashlib.sha256(json.dumps(structure).encode()).hexdigest()


def _describe_input(tensor: Any) -> str:
    # A symbolic dimension's name is one of several aliases that vary between runs: only its place is kept.
    shape = ("?" if dim.dim_param else dim.dim_value for dim in tensor.shape.dim)
    return _describe(tensor.elem_type, shape)


def _describe_constant(constant: Any) -> str:
    content = constant.raw_data if len(constant.raw_data) <= SMALL_CONSTANT_BYTES else b""
    return f"{_describe(constant.data_type, constant.dims)} {hashlib.sha256(content).hexdigest()}"


def _describe(element_type: int, shape: Iterable[int | str]) -> str:
    return f"{element_type} {'x'.join(map(str, shape))}"


def describe_device(device: Any) -> Device:
    """The device that ORTModule placed the model on."""
    if device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        return Device(kind="cuda", name=properties.name, uuid=str(properties.uuid), total_bytes=properties.total_memory)
    name = platform.processor() or platform.machine()
    return Device(kind="cpu", name=f"{name}, {psutil.cpu_count()} cores", total_bytes=psutil.virtual_memory().total)


def read_versions() -> dict[str, str]:
    """The versions that plans and speed depend on."""
    import onnxruntime
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "backend": "ortmodule",
    }
