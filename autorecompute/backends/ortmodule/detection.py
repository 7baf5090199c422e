"""Reads plans, dimensions and the graph's structure from the objects of a live ORTModule, never from its logs."""

from __future__ import annotations

import inspect
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psutil

from autorecompute.backends.ortmodule.environment import IGNORING_LAYERS, WITHIN_LAYERS
from autorecompute.backends.ortmodule.insight_table import read_insights
from autorecompute.backends.ortmodule.knobs import CUSTOM_AUTOGRAD
from autorecompute.backends.ortmodule.structure import digest_graph
from autorecompute.measurement import Detection, Device
from autorecompute.plans import Axis, Plan, canonical_names, find_sharing, saving_of
from autorecompute.plans.savings import evaluate, simplify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans import Insight

_WHOLE_NUMBERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The integers among ONNX's element types."""

ID_RANK = 2
"""Token ids come as a table of samples by positions."""


def detect(manager: Any) -> Detection:
    """What can be recomputed in a training session that was built without recompute.

    Args:
        manager: ORT's ``TrainingManager`` whose execution agent was just created.
    """
    agent = manager._execution_agent  # noqa: SLF001
    graph = manager._onnx_models.optimized_model.graph  # noqa: SLF001
    axes = _axes_of(manager)
    names = canonical_names(axes)
    dims = {names[axis.alias]: axis.value for axis in axes}
    plans, insights = probe_plans(agent, IGNORING_LAYERS, names, dims)
    layer_plans, layer_insights = probe_plans(agent, WITHIN_LAYERS, names, dims)
    return Detection(
        plans=plans,
        layer_plans=layer_plans,
        insights=insights,
        layer_insights=layer_insights,
        dims=dims,
        aliases={name: tuple(alias for alias in names if names[alias] == name) for name in dims},
        graph=digest_graph(graph),
        device=describe_device(manager._device),  # noqa: SLF001
        versions=read_versions(),
        features=_read_features(),
    )


def _read_features() -> tuple[str, ...]:
    from onnxruntime.training.ortmodule._custom_autograd_function import custom_autograd_function_enabler

    return (CUSTOM_AUTOGRAD,) if custom_autograd_function_enabler.state else ()


def name_dims(manager: Any) -> dict[str, str]:
    """What we call each symbolic dimension, by ORT's name of it."""
    return canonical_names(_axes_of(manager))


def _axes_of(manager: Any) -> list[Axis]:
    values = manager._runtime_inspector.memory_ob.symbolic_dim_name_to_value_map  # noqa: SLF001
    return read_axes(values, manager._onnx_models.optimized_model.graph)  # noqa: SLF001


def read_axes(values: Mapping[Any, Any], graph: Any) -> list[Axis]:
    """The symbolic dimensions of the model's inputs.

    Args:
        values: ORT's name of each dimension, and its size in the first batch.
        graph: The training graph; its inputs tell the type and rank of what a dimension belongs to.
    """
    tensors = {value.name: value.type.tensor_type for value in graph.input}
    axes = []
    for symbol, value in values.items():
        name, _, place = str(symbol).rpartition("_dim")
        tensor = tensors.get(name)
        is_of_ids = tensor is not None and tensor.elem_type in _WHOLE_NUMBERS and len(tensor.shape.dim) == ID_RANK
        axes.append(Axis(alias=str(symbol), place=int(place), value=int(value), is_of_ids=is_of_ids))
    return axes


def probe_plans(
    agent: Any, probe: str, names: Mapping[str, str], dims: Mapping[str, int]
) -> tuple[tuple[Plan, ...], tuple[Insight, ...]]:
    """The plans ORT finds under a probe config, largest saving first, and the activations they are about."""
    stat = agent.get_serialized_ortmodule_memory_stat
    # ORT 1.19 added a flag for the printed table; 1.17 and 1.18 always make it
    takes_table_flag = len(inspect.signature(stat).parameters) > len(("config", "probe"))
    table, found = stat("", probe, True) if takes_table_flag else stat("", probe)
    insights = read_insights(table, names)
    plans = [
        make_plan(key, raw, frequency, insights=insights, names=names, dims=dims)
        for key, (raw, frequency) in found.items()
    ]
    alone = [correct_for_sharing(plan, plans, insights, dims) for plan in plans]
    return tuple(sorted(alone, key=lambda plan: (-(plan.saving_bytes or 0), plan.key))), insights


def make_plan(  # noqa: PLR0913  (what ORT says of a plan, and what it is read with)
    key: str,
    raw: str,
    frequency: int,
    *,
    insights: Sequence[Insight],
    names: Mapping[str, str],
    dims: Mapping[str, int],
) -> Plan:
    """A plan with the saving of all its outputs, where the insights cover it, and otherwise with ORT's own figure."""
    stated = simplify(raw, names)
    plan = Plan.parse(key, frequency=frequency, saving_bytes=evaluate(stated, dims), saving_symbolic=stated)
    summed, covered = saving_of(plan.rows[0], insights)
    saving = simplify(summed)
    if len(plan.rows) > 1 or covered != frequency or saving == stated:
        return plan
    return replace(plan, saving_bytes=evaluate(saving, dims), saving_symbolic=saving, stated_symbolic=stated)


def correct_for_sharing(
    plan: Plan, plans: Sequence[Plan], insights: Sequence[Insight], dims: Mapping[str, int]
) -> Plan:
    """The plan with each buffer counted once, though outputs of several plans lie in it.

    Two plans that share are worth all that both are about; the owner of the buffers is worth less alone. Where it
    shares with several others, or the activations do not tell, the plan is left as it is.
    """
    pairs = [other for other in plans if len(other.rows) > 1 and set(plan.rows) <= set(other.rows)]
    sharing = find_sharing(pairs[0].rows, pairs[0].frequency, insights, dims) if len(pairs) == 1 else None
    if sharing is None or plan.rows == (sharing.reuser,):
        return plan
    summed = " + ".join(saving_of(row, insights)[0] for row in plan.rows)
    saving = simplify(f"{summed} - ({sharing.doubled})")
    saving_bytes = evaluate(saving, dims)
    if saving_bytes == plan.saving_bytes:
        return plan
    stated = plan.stated_symbolic or plan.saving_symbolic
    return replace(plan, saving_bytes=saving_bytes, saving_symbolic=saving, stated_symbolic=stated)


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
