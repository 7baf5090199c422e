"""Reads plans, dimensions and the graph's structure from the objects of a live ORTModule, never from its logs."""

from __future__ import annotations

import inspect
import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.backends.common.device import describe_device
from autorecompute.backends.ortmodule.axes import Axis, canonical_names
from autorecompute.backends.ortmodule.environment import IGNORING_LAYERS, WITHIN_LAYERS, levels_of
from autorecompute.backends.ortmodule.extra import OrtDetection, has_layer_boundaries
from autorecompute.backends.ortmodule.grammar import make_plan, option_of, presets_of
from autorecompute.backends.ortmodule.insight_table import read_clusters
from autorecompute.backends.ortmodule.knobs import CUSTOM_AUTOGRAD
from autorecompute.backends.ortmodule.sharing import find_sharing
from autorecompute.backends.ortmodule.structure import digest_graph
from autorecompute.plans import Cluster, Plan, saving_of
from autorecompute.plans.savings import evaluate, simplify
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_WHOLE_NUMBERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The integers among ONNX's element types."""

ID_RANK = 2
"""Token ids come as a table of samples by positions."""


def detect(manager: Any) -> Detection:
    """Return what can be recomputed in a training session that was built without recompute.

    Args:
        manager: ORT's ``TrainingManager`` whose execution agent was just created.
    """
    agent = manager._execution_agent  # noqa: SLF001
    graph = manager._onnx_models.optimized_model.graph  # noqa: SLF001
    axes = _axes_of(manager)
    names = canonical_names(axes)
    dims = {names[axis.alias]: axis.value for axis in axes}
    plans, clusters = probe_plans(agent, IGNORING_LAYERS, names, dims)
    layer_plans, layer_clusters = probe_plans(agent, WITHIN_LAYERS, names, dims)
    extra = OrtDetection(layer_plans=layer_plans, layer_clusters=layer_clusters, features=_read_features())
    versions = read_versions()
    return Detection(
        plans=plans,
        own_presets=presets_of(
            plans, levels_of(versions["onnxruntime"]), has_boundaries=has_layer_boundaries(plans, layer_plans)
        ),
        clusters=clusters,
        dims=dims,
        aliases={name: tuple(alias for alias in names if names[alias] == name) for name in dims},
        graph=digest_graph(graph),
        device=describe_device(manager._device),  # noqa: SLF001
        versions=versions,
        plan_versions=("onnxruntime",),
        extra=codec.to_plain(extra),
    )


def _read_features() -> tuple[str, ...]:
    from onnxruntime.training.ortmodule._custom_autograd_function import custom_autograd_function_enabler

    return (CUSTOM_AUTOGRAD,) if custom_autograd_function_enabler.state else ()


def name_dims(manager: Any) -> dict[str, str]:
    """Return what we call each symbolic dimension, by ORT's name of it."""
    return canonical_names(_axes_of(manager))


def _axes_of(manager: Any) -> list[Axis]:
    values = manager._runtime_inspector.memory_ob.symbolic_dim_name_to_value_map  # noqa: SLF001
    return read_axes(values, manager._onnx_models.optimized_model.graph)  # noqa: SLF001


def read_axes(values: Mapping[Any, Any], graph: Any) -> list[Axis]:
    """Return the symbolic dimensions of the model's inputs.

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
) -> tuple[tuple[Plan, ...], tuple[Cluster, ...]]:
    """Return the plans ORT finds under a probe config, and the activations they are about.

    Those that recompute whole subgraphs come first, then those with a compromise; each the largest saving first.
    """
    stat = agent.get_serialized_ortmodule_memory_stat
    # ORT 1.19 added a flag for the printed table; 1.17 and 1.18 always make it
    takes_table_flag = len(inspect.signature(stat).parameters) > len(("config", "probe"))
    table, found = stat("", probe, True) if takes_table_flag else stat("", probe)
    clusters = read_clusters(table, names)
    plans = [
        sum_up(key, raw, occurrences, clusters=clusters, names=names, dims=dims)
        for key, (raw, occurrences) in found.items()
    ]
    alone = [correct_for_sharing(plan, plans, clusters, dims) for plan in plans]
    return tuple(sorted(alone, key=_preference)), clusters


def _preference(plan: Plan) -> tuple[str, int, str]:
    return option_of(plan), -(plan.saving_bytes or 0), plan.id


def sum_up(  # noqa: PLR0913  (what ORT says of a plan, and what it is read with)
    key: str,
    raw: str,
    occurrences: int,
    *,
    clusters: tuple[Cluster, ...],
    names: Mapping[str, str],
    dims: Mapping[str, int],
) -> Plan:
    """Return a plan with the saving of all its outputs, where the clusters cover it, else with ORT's own figure."""
    stated = simplify(raw, names)
    plan = make_plan(key, occurrences=occurrences, saving_bytes=evaluate(stated, dims), saving=stated)
    summed, covered = saving_of(plan.choices[0], clusters)
    saving = simplify(summed)
    if len(plan.choices) > 1 or covered != occurrences or saving == stated:
        return plan
    return replace(plan, saving_bytes=evaluate(saving, dims), saving=saving, stated=stated)


def correct_for_sharing(
    plan: Plan, plans: Sequence[Plan], clusters: tuple[Cluster, ...], dims: Mapping[str, int]
) -> Plan:
    """Return the plan with each buffer counted once, though outputs of several plans lie in it.

    Two plans that share are worth all that both are about; the owner of the buffers is worth less alone. Where it
    shares with several others, or the activations do not tell, the plan is left as it is.
    """
    pairs = [other for other in plans if len(other.choices) > 1 and set(plan.choices) <= set(other.choices)]
    sharing = find_sharing(pairs[0].choices, pairs[0].occurrences, clusters, dims) if len(pairs) == 1 else None
    if sharing is None or plan.choices == (sharing.reuser,):
        return plan
    summed = " + ".join(saving_of(choice, clusters)[0] for choice in plan.choices)
    saving = simplify(f"{summed} - ({sharing.doubled})")
    saving_bytes = evaluate(saving, dims)
    if saving_bytes == plan.saving_bytes:
        return plan
    stated = plan.stated or plan.saving
    return replace(plan, saving_bytes=saving_bytes, saving=saving, stated=stated)


def read_versions() -> dict[str, str]:
    """Return the versions that plans and speed depend on."""
    import onnxruntime
    import torch

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "onnxruntime": onnxruntime.__version__,
        "backend": "ortmodule",
    }
