"""Detects the plans that ONNX Runtime's memory optimizer finds in a training graph."""

from __future__ import annotations

import hashlib
import inspect
import platform
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute import codec
from autorecompute.backends.common import describe_device, most_common
from autorecompute.backends.ortmodule.controller import (
    COMPROMISE,
    CUSTOM_AUTOGRAD,
    IGNORING_LAYERS,
    NAME,
    RECOMPUTE,
    WITHIN_LAYERS,
    OrtDetection,
    has_layer_boundaries,
    levels_of,
    make_plan,
    option_of,
    presets_of,
)
from autorecompute.plans import PERCENT, Activation, Alternative, Choice, Cluster, Plan, saving_of
from autorecompute.plans.savings import BATCH, SEQUENCE, evaluate, simplify
from autorecompute.training_job import Detection, allocator_of_plans, read_allocator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_WHOLE_NUMBERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})  # the integers among ONNX's element types
ID_RANK = 2  # token ids come as a table of samples by positions


def read_dims(values: Mapping[Any, Any], graph: Any) -> tuple[dict[str, str], dict[str, int]]:
    """Return our name of each symbolic dimension of the model's inputs, and the size by our name.

    Dimensions at the same place with the same size are one, and have one name. The first dimension that most inputs
    share is the ``batch``, the second one of token ids the ``sequence``. Another keeps ORT's name, ``input_ids_dim2``,
    in the first input that has it. Two that only happened to be equal in the first batch are one, too: ``values`` are
    its sizes, by ORT's name.
    """
    types = {value.name: value.type.tensor_type for value in graph.input}
    ids = {name for name, one in types.items() if one.elem_type in _WHOLE_NUMBERS and len(one.shape.dim) == ID_RANK}
    axes = {}
    for alias, size in values.items():
        source, _, place = str(alias).rpartition("_dim")
        axes[str(alias)] = (source, int(place), int(size))
    names = {}
    # Inputs come in the order of the model's signature.
    if batch := most_common(size for _, place, size in axes.values() if place == 0):
        names[0, batch] = BATCH
    if sequence := most_common(size for source, place, size in axes.values() if place == 1 and source in ids):
        names[1, sequence] = SEQUENCE
    found = {alias: names.setdefault((place, size), alias) for alias, (_, place, size) in axes.items()}
    return found, {found[alias]: size for alias, (_, _, size) in axes.items()}


def _merge_alike(clusters: Iterable[Cluster]) -> tuple[Cluster, ...]:
    """Return the clusters with equal ones told as one, most frequent first.

    ORT 1.19 writes the outputs of a node in the order of a hash table and so lists equal nodes in several rows.
    """
    occurrences: Counter[tuple[Alternative, ...]] = Counter()
    reuses: dict[tuple[Alternative, ...], Counter[tuple[Choice, int]]] = defaultdict(Counter)
    for cluster in clusters:
        kind = tuple(_with_reuse(way, {}) for way in cluster.alternatives)
        occurrences[kind] += cluster.occurrences
        for way in cluster.alternatives:
            reuses[kind].update({(way.choice, kept.output): kept.reuse_frequency for kept in way.activations})
    merged = [
        Cluster(occurrences=count, alternatives=tuple(_with_reuse(way, reuses[kind]) for way in kind))
        for kind, count in occurrences.items()
    ]
    return tuple(sorted(merged, key=lambda cluster: (-cluster.occurrences, str(cluster.alternatives))))


def _with_reuse(way: Alternative, reuses: Mapping[tuple[Choice, int], int]) -> Alternative:
    ordered = sorted(way.activations, key=lambda kept: kept.output)
    kept = (replace(one, reuse_frequency=reuses.get((way.choice, one.output), 0)) for one in ordered)
    return replace(way, activations=tuple(kept))


_OPTIONS = {"Recompute": RECOMPUTE, "RecomputeWithCompromise": COMPROMISE}
_CLUSTER = re.compile(r"\|(\d+)\s*\|")
_CHOICE = re.compile(rf">>Option \d+\s*: ({'|'.join(_OPTIONS)}) subgraph (\S+)")
_REUSE = re.compile(r"Output (\d+)\((\d+)\)")
_ACTIVATION = re.compile(r"- Output (\d+)\s*: \[(.*)\], byte/elem: (\d+), (\d+)% saved")


def read_clusters(table: str, names: Mapping[str, str]) -> tuple[Cluster, ...]:
    """Return the clusters of ORT's table, equal ones told as one; none where the text is no such table."""
    return _merge_alike(
        Cluster(
            occurrences=int(match[1]),
            alternatives=tuple(_read_alternative(choice, lines, names) for choice, lines in _blocks(block, _CHOICE)),
        )
        for match, block in _blocks(table.splitlines(), _CLUSTER)
    )


def _blocks(lines: Sequence[str], beginning: re.Pattern[str]) -> Iterator[tuple[re.Match[str], Sequence[str]]]:
    """Yield the lines in blocks, each with the match of the pattern in its first line."""
    starts = [(number, match) for number, line in enumerate(lines) if (match := beginning.search(line)) is not None]
    ends = [*(number for number, _ in starts[1:]), len(lines)]
    for (start, match), end in zip(starts, ends, strict=False):
        yield match, lines[start:end]


def _read_alternative(match: re.Match[str], block: Sequence[str], names: Mapping[str, str]) -> Alternative:
    reuse_lines = "".join(line for line in block if "ReuseFreq" in line)
    reuses = {int(output): int(count) for output, count in _REUSE.findall(reuse_lines)}
    found = filter(None, map(_ACTIVATION.search, block))
    activations = tuple(_make_activation(each, names, reuses) for each in found)
    return Alternative(choice=Choice(match[2], _OPTIONS[match[1]]), activations=activations)


def _make_activation(match: re.Match[str], names: Mapping[str, str], reuses: Mapping[int, int]) -> Activation:
    output, element_bytes, percent = map(int, match.group(1, 3, 4))
    # ORT cuts the percentage down to a whole number, but what a cast keeps of an element is whole bytes.
    kept_bytes = round(element_bytes * (PERCENT - percent) / PERCENT)
    return Activation(
        output=output,
        shape=tuple(simplify(size, names) for size in _split_shape(match[2])),
        element_bytes=element_bytes,
        saved_bytes=element_bytes - kept_bytes,
        reuse_frequency=reuses.get(output, 0),
    )


def _split_shape(text: str) -> list[str]:
    """Return the dimensions of ``((batch)*(4)*(2*length))``, or of ``batch x 4 x 2*length x ``."""
    if " x " in text:
        return [size.strip() for size in text.split(" x ") if size.strip()]
    if not text.startswith("("):
        return [text] if text else []
    sizes, depth = [""], 0
    for sign in text[1:-1]:
        depth += (sign == "(") - (sign == ")")
        if sign == "*" and depth == 0:
            sizes.append("")
        else:
            sizes[-1] += sign
    return [size for size in sizes if size]


def _find_sharing(
    choices: Sequence[Choice], occurrences: int, clusters: Sequence[Cluster], dims: Mapping[str, int]
) -> tuple[Choice, str] | None:
    """Find out how two plans of ORT share their buffers, in so many nodes; ``None`` where the activations do not tell.

    The first is the plan whose outputs lie in the buffers of the other. The second are the bytes that the activations
    of both plans count, ``0`` where only that output is kept for itself: the other plan cannot free them alone.
    """
    reusers = [choice for choice in choices if any(kept.reuse_frequency for _, kept in _kept(choice, clusters))]
    owners = [choice for choice in choices if choice not in reusers]
    if (len(reusers), len(owners)) != (1, 1):
        return None
    (reuser,), (owner,) = reusers, owners
    sizes = {evaluate(kept.saving, dims) for nodes, kept in _kept(reuser, clusters) if kept.reuse_frequency}
    doubled = [(nodes, kept) for nodes, kept in _kept(owner, clusters) if evaluate(kept.saving, dims) in sizes]
    others = sum(
        cluster.occurrences
        for cluster in clusters
        for way in cluster.alternatives
        if way.choice == owner and not any((cluster.occurrences, kept) in doubled for kept in way.activations)
    )
    if sum(nodes for nodes, _ in doubled) < occurrences <= others:
        return reuser, "0"
    if len(doubled) == 1 and doubled[0][0] >= occurrences > others:
        return reuser, f"{occurrences}*{doubled[0][1].saving}"
    return None


def _kept(choice: Choice, clusters: Sequence[Cluster]) -> list[tuple[int, Activation]]:
    """Return the activations of the plan, each with the number of nodes that keep it."""
    return [
        (cluster.occurrences, kept)
        for cluster in clusters
        for way in cluster.alternatives
        if way.choice == choice
        for kept in way.activations
    ]


ROUNDS = 2  # after the first, a node knows all that it comes from; after the second, who else reads that
SMALL_CONSTANT_BYTES = 1024  # size above which a constant is data: its type and shape stand for it

COMMUTING = frozenset({"Add", "And", "Max", "Mean", "Min", "Mul", "Or", "Sum", "Xor"})
"""Operators whose operands ORT lists in any order."""

WITHOUT_MEANING = frozenset({"comment", "input_pointer_scalars"})
"""Attributes of ORT's ``PythonOp``: words for people, and the memory addresses of Python objects."""

ABSENT = "absent"  # stands for an optional operand that a node goes without


def digest_graph(graph: Any) -> str:
    """Return hexadecimal digits that are equal for ONNX graphs that compute the same in the same way."""
    of_leaves = {value.name: _describe_input(value.type.tensor_type) for value in graph.input}
    of_leaves |= {constant.name: _describe_constant(constant) for constant in graph.initializer}
    of_nodes = [_describe_node(node) for node in graph.node]
    for _ in range(ROUNDS):
        values, nodes = _label_by_origin(graph, of_leaves, of_nodes)
        of_leaves, of_nodes = _label_by_readers(graph, values, nodes)
    outputs = [values.get(value.name, ABSENT) for value in graph.output]
    parts = (of_nodes, of_leaves.values(), outputs)
    counted = (sorted(Counter(part).items()) for part in parts)
    return _hash(*(_hash(*(f"{label} {count}" for label, count in part)) for part in counted))


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
    shape = ("?" if dim.dim_param else str(dim.dim_value) for dim in tensor.shape.dim)
    return f"{tensor.elem_type} {'x'.join(shape)}"


def _describe_constant(constant: Any) -> str:
    import onnx

    described = f"{constant.data_type} {'x'.join(map(str, constant.dims))}"
    array = onnx.numpy_helper.to_array(constant)
    is_small = array.nbytes <= SMALL_CONSTANT_BYTES
    return f"{described} {hashlib.sha256(array.tobytes()).hexdigest()}" if is_small else described


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


def _hash(*texts: str) -> str:
    joined = "\0".join(texts)
    return hashlib.sha256(joined.encode(errors="surrogateescape")).hexdigest()


def detect(manager: Any) -> Detection:
    """Return the detection of a ``TrainingManager`` whose session was just built without recompute."""
    import onnxruntime
    import torch
    from onnxruntime.training.ortmodule._custom_autograd_function import custom_autograd_function_enabler

    agent = manager._execution_agent  # noqa: SLF001
    names, dims = dims_of(manager)
    plans, clusters = probe_plans(agent, IGNORING_LAYERS, names, dims)
    layer_plans, layer_clusters = probe_plans(agent, WITHIN_LAYERS, names, dims)
    features = (CUSTOM_AUTOGRAD,) if custom_autograd_function_enabler.state else ()
    extra = OrtDetection(layer_plans=layer_plans, layer_clusters=layer_clusters, features=features)
    has_boundaries = has_layer_boundaries(plans, layer_plans)
    device = describe_device(manager._device)  # noqa: SLF001
    allocator = read_allocator(device)
    versions = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__, "backend": NAME, **allocator}
    return Detection(
        plans=plans,
        own_presets=presets_of(plans, levels_of(onnxruntime.__version__), has_boundaries=has_boundaries),
        clusters=clusters,
        dims=dims,
        aliases={name: tuple(alias for alias in names if names[alias] == name) for name in dims},
        graph=digest_graph(manager._onnx_models.optimized_model.graph),  # noqa: SLF001
        device=device,
        versions={"python": platform.python_version(), **versions},
        plan_versions=("onnxruntime", *allocator_of_plans(device, allocator)),
        extra=codec.to_plain(extra),
    )


def dims_of(manager: Any) -> tuple[dict[str, str], dict[str, int]]:
    """Return our name of each symbolic dimension of a ``TrainingManager``, and the size by our name."""
    values = manager._runtime_inspector.memory_ob.symbolic_dim_name_to_value_map  # noqa: SLF001
    return read_dims(values, manager._onnx_models.optimized_model.graph)  # noqa: SLF001


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
    plans = []
    for key, (raw, occurrences) in found.items():
        stated = simplify(raw, names)
        plan = make_plan(key, occurrences=occurrences, saving_bytes=evaluate(stated, dims), saving=stated)
        summed, covered = saving_of(plan.choices[0], clusters)
        is_known = len(plan.choices) == 1 and covered == occurrences  # else ORT's own figure is all there is
        saving = simplify(summed) if is_known else stated
        plans.append(plan if saving == stated else _with_saving(plan, saving, dims))
    alone = [correct_for_sharing(plan, plans, clusters, dims) for plan in plans]
    return tuple(sorted(alone, key=lambda plan: (option_of(plan), -(plan.saving_bytes or 0), plan.id))), clusters


def _with_saving(plan: Plan, saving: str, dims: Mapping[str, int]) -> Plan:
    stated = plan.stated or plan.saving
    return replace(plan, saving_bytes=evaluate(saving, dims), saving=saving, stated=stated)


def correct_for_sharing(
    plan: Plan, plans: Sequence[Plan], clusters: tuple[Cluster, ...], dims: Mapping[str, int]
) -> Plan:
    """Return the plan with each buffer counted once, though outputs of several plans lie in it.

    Two plans that share are worth all that both are about; the owner of the buffers is worth less alone. Where it
    shares with several others, or the activations do not tell, the plan is left as it is.
    """
    pairs = [other for other in plans if len(other.choices) > 1 and set(plan.choices) <= set(other.choices)]
    sharing = _find_sharing(pairs[0].choices, pairs[0].occurrences, clusters, dims) if len(pairs) == 1 else None
    if sharing is None or plan.choices == (sharing[0],):
        return plan
    summed = " + ".join(saving_of(choice, clusters)[0] for choice in plan.choices)
    corrected = _with_saving(plan, simplify(f"{summed} - ({sharing[1]})"), dims)
    return plan if corrected.saving_bytes == plan.saving_bytes else corrected
