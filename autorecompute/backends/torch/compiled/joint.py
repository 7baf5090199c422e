"""The joint graph of a compiled model, divided at the units of the model."""

from __future__ import annotations

import collections
import copy
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor import custom_graph_pass
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.switch.module_state import copies_of, untouched
from autorecompute.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from torch.fx import Graph
    from torch.nn import Module

    from autorecompute.backends.torch.find.structure import Structure


CustomPartitionerFn: Any = getattr(custom_graph_pass, "CustomPartitionerFn", object)
"""An older torch lacks it (``forms.refusals_of_compiled``)."""

BACKWARD = "is_backward"  # the value that the compiler writes at nodes of the backward pass, under partitioner_tag
_ROOT = re.compile(r"^L\['[^']*'\](\[\d+\])?\.?")  # L['self'], or L['args'][0] where a decorator hands it on
_SLICE = re.compile(r"slice\([^)]*\)\.?")
_ITEM = re.compile(r"\._modules\['([^']*)'\]")
_INNER = re.compile(r"(^|\.)_orig_mod(?=\.|$)")

VIEWS = frozenset(
    {"view", "reshape", "_unsafe_view", "permute", "transpose", "t", "expand", "slice", "unsqueeze", "squeeze"}
    | {"select", "split", "split_with_sizes", "alias", "as_strided", "detach", "unbind", "diagonal"}
)
"""Operators whose result is their first argument's memory."""


def kind_of(node: Node) -> str:
    """Return the name of a node's operator without namespace and overload; empty where it calls none."""
    return str(node.target.overloadpacket.__name__) if isinstance(node.target, OpOverload) else ""


def is_view(node: Node) -> bool:
    """Tell whether a node has no memory of its own."""
    return node.target is operator.getitem or kind_of(node) in VIEWS


def owner_of(node: Node) -> Node:
    """Return the node that made the memory that a node looks at."""
    while is_view(node):
        node = node.args[0]
    return node


def path_of(node: Node) -> str | None:
    """Return the path of the innermost module that a node of the forward pass was traced in; ``None`` of others."""
    stack = node.meta.get("nn_module_stack")
    if not stack or node.meta.get("partitioner_tag") == BACKWARD:
        return None
    path: str = list(stack.values())[-1][0]
    for pattern, replacement in ((_ROOT, ""), (_ITEM, r".\1"), (_SLICE, ""), (_INNER, "")):
        path = pattern.sub(replacement, path)
    return path.strip(".")


def cluster_of(node: Node, groups: Mapping[str, str]) -> str | None:
    """Return the name that a choice gives the cluster of a node: ``blocks.*.mlp/gelu``; ``None`` where it is in none.

    What is drawn by chance is in none: it is kept in any case. Nor is what the model itself does around its modules.
    """
    path, kind = path_of(node), kind_of(node)
    group = groups.get(path) if path is not None else None
    if not group or not kind or is_view(node) or is_random(node):
        return None
    return f"{group}/{kind}"


def is_random(node: Node) -> bool:
    """Tell whether running a node again would draw other numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def groups_of(structure: Structure) -> dict[str, str]:
    """Return the group of each module, by its path."""
    return {path: group for group, paths in structure.groups.items() for path in paths}


def bytes_of(node: Node) -> int:
    """Return the bytes of what a node makes, at the sizes that it was traced with."""
    total = 0
    for value in tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            count = value.numel()
            hint = count.node.hint if isinstance(count, torch.SymInt) else count
            total += int(hint or 0) * value.element_size()
    return total


POLICY = "recompute"  # under this name a node says what is to be done with its result; so do those of checkpoints


class Marks(CustomGraphPass):  # type: ignore[misc]
    """Has the compiler keep what was drawn by chance, or the seeds of it, and do with clusters what is asked for.

    Once anything is recomputed PyTorch takes an operator for one that it may run again unless it knows it as random,
    and it does not know most: the masks of a dropout in the backward pass were others than in the forward pass, without
    a word (seen with torch 2.13 on a CPU). Seeds take some bytes, and masks are made of them again.

    Args:
        next_pass: The pass that the script has at this place.
        groups: The group of each module of the model, by its path.
        recomputed: Clusters of operators that are made again, but for what a checkpoint decides about.
        kept: Clusters that are kept, where no checkpoint decides about them.
        spared: Clusters that are kept where a checkpoint would make them again.
    """

    def __init__(
        self,
        next_pass: Any = None,
        groups: Mapping[str, str] = MappingProxyType({}),
        *,
        recomputed: Collection[str] = (),
        kept: Collection[str] = (),
        spared: Collection[str] = (),
    ) -> None:
        self._next, self._groups = next_pass, groups
        self._recomputed, self._kept, self._spared = recomputed, kept, spared

    def __call__(self, graph: torch.fx.Graph) -> None:
        """Mark the operators of a joint graph of forward and backward pass."""
        if self._next is not None:
            self._next(graph)
        for node in graph.nodes:
            if (policy := self._policy_of(node)) is not None:
                node.meta[POLICY] = policy

    def _policy_of(self, node: torch.fx.Node) -> CheckpointPolicy | None:
        """Return the policy for a node's result.

        A checkpoint would recompute some results of a tuple and keep others. All are kept there: a tuple cannot be
        split.
        """
        if node.target is operator.getitem and POLICY in node.meta:
            whole = node.args[0].meta.get(POLICY)
            return whole if whole is CheckpointPolicy.MUST_SAVE else None
        cluster = cluster_of(node, self._groups)
        if is_random(node) or cluster in (self._spared if POLICY in node.meta else self._kept):
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.MUST_RECOMPUTE if POLICY not in node.meta and cluster in self._recomputed else None

    def uuid(self) -> Any:
        """Return this pass's key for the compiler's caches: other clusters make other code."""
        clusters = tuple(tuple(sorted(names)) for names in (self._recomputed, self._kept, self._spared))
        own = (type(self).__qualname__, *clusters, tuple(sorted(self._groups.items())) if any(clusters) else ())
        if self._next is None:
            return own
        inner = self._next.uuid() if isinstance(self._next, CustomGraphPass) else None
        return None if inner is None else (own, inner)


@dataclass(frozen=True)
class Halves:
    """A joint graph that was cut in two."""

    forward: GraphModule
    backward: GraphModule
    kept: tuple[Node, ...]
    returned: tuple[Node, ...]


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward pass of what is compiled as one: the whole model, or a part of it."""

    module: GraphModule
    inputs: Sequence[object]
    options: Mapping[str, Any]

    def cut(self, mark: Callable[[Graph], object] | None = None, budget: float | None = None) -> Halves:
        """Return the forward and backward graph into which the compiler would cut it under a memory budget.

        ``mark`` marks operators before that. Without a budget the script's own holds.
        """
        module = copy.deepcopy(self.module)
        if mark is not None:
            mark(module.graph)
        value = functorch.activation_memory_budget if budget is None else budget
        with functorch.patch(activation_memory_budget=value):
            forward, backward = min_cut_rematerialization_partition(module, self.inputs, **self.options)
        first = self.options["num_fwd_outputs"]
        results = [node if isinstance(node, torch.fx.Node) else None for node in forward.graph.output_node().args[0]]
        returned, kept = ([node for node in part if node is not None] for part in (results[:first], results[first:]))
        return Halves(forward, backward, tuple(kept), tuple(returned))

    def holds(self, model: Module) -> bool:
        """Tell whether the whole model is in it: all it trains is among the inputs that outlast a step."""
        given = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        fixed = [given[place] for place in self.options.get("static_lifetime_input_indices") or ()]
        trained = collections.Counter(tuple(one.shape) for one in model.parameters() if one.requires_grad)
        return trained <= collections.Counter(tuple(node.meta["val"].shape) for node in fixed)


class _Partitioner(CustomPartitionerFn):  # type: ignore[misc]
    def __init__(self, cut: Callable[[JointGraph], tuple[GraphModule, GraphModule]]) -> None:
        self._cut = cut

    def __call__(self, graph: GraphModule, inputs: Sequence[object], **options: Any) -> Any:
        return self._cut(JointGraph(graph, inputs, options))

    def __getstate__(self) -> dict[str, Any]:
        return {}  # the compiler pickles its settings, and a local function would make it warn

    def uuid(self) -> None:
        """Return no key: nothing of this may be found in a cache."""


def traced_by(
    cut: Callable[[JointGraph], tuple[GraphModule, GraphModule]],
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Call the model as in a step, and have its joint graphs cut; return what ended that, if anything."""
    args, kwargs = copies_of((tuple(args), dict(kwargs)))
    patched = inductor.patch(
        custom_partitioner_fn=_Partitioner(cut), joint_custom_post_pass=Marks(inductor.joint_custom_post_pass)
    )
    torch._dynamo.reset()
    reason = ""
    try:
        with untouched(model), torch.enable_grad(), patched:
            model(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (the compiler wraps what ends it, and fails by itself in many ways)
        reason = first_line(error)
    torch._dynamo.reset()
    return reason
