"""A compiled model's forward and backward pass as joint graphs, and how the compiler would cut each in two."""

from __future__ import annotations

import collections
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx import GraphModule, Node

from autorecompute.backends.torch.compiled.clusters import bytes_of
from autorecompute.backends.torch.compiled.marks import Marks
from autorecompute.backends.torch.untouched import copies_of, untouched
from autorecompute.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.fx import Graph
    from torch.nn import Module


class _KnownError(Exception):
    """All is known that the compilation was begun for."""


@dataclass(frozen=True)
class Halves:
    """A joint graph that was cut in two.

    Attributes:
        forward: The forward pass, which also returns what is kept.
        backward: The backward pass, with what is made again.
        kept: What the forward pass keeps for the backward pass, by the nodes that return it.
        returned: What else it returns.
    """

    forward: GraphModule
    backward: GraphModule
    kept: tuple[Node, ...]
    returned: tuple[Node, ...]

    @property
    def kept_names(self) -> frozenset[str]:
        """Return the names of what is kept: equal for cuts that do the same."""
        return frozenset(node.name for node in self.kept)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept and was made in the forward pass."""
        return sum(bytes_of(node) for node in self.kept if node.op != "placeholder")


@dataclass(frozen=True)
class JointGraph:
    """Forward and backward pass of what is compiled as one: the whole model, or a part of it.

    Attributes:
        module: The graph.
        inputs: What it was traced with.
        options: What else the compiler tells whoever cuts it.
    """

    module: GraphModule
    inputs: Sequence[object]
    options: Mapping[str, Any]

    def cut(self, mark: Callable[[Graph], object] | None = None, budget: float | None = None) -> Halves:
        """Return how the compiler would cut it.

        Args:
            mark: Marks operators before that; ``None`` for what the compiler does by itself.
            budget: The memory budget; ``None`` for the script's own.
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

    def fixed(self) -> list[Node]:
        """Return the inputs that outlast a step: parameters and buffers."""
        given = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        return [given[place] for place in self.options.get("static_lifetime_input_indices") or ()]

    def holds(self, model: Module) -> bool:
        """Tell whether the whole model is in it: all of its trained parameters are among its inputs."""
        trained = collections.Counter(tuple(one.shape) for one in model.parameters() if one.requires_grad)
        return trained <= collections.Counter(tuple(node.meta["val"].shape) for node in self.fixed())


class _Capture(CustomPartitionerFn):  # type: ignore[misc]
    """Takes the first joint graph, and ends the compilation."""

    def __init__(self) -> None:
        self.found: JointGraph | None = None

    def __call__(self, graph: GraphModule, inputs: Sequence[object], **options: Any) -> Any:
        """Raise an error: there is nothing to go on with."""
        self.found = JointGraph(graph, inputs, options)
        raise _KnownError

    def uuid(self) -> None:
        """Return no key: nothing of this may be found in a cache."""


def trace(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[JointGraph | None, str]:
    """Return the model traced as for a step, which is not run; the first of its graphs where it is compiled in several.

    ``None`` where it cannot be traced, and then why.
    """
    capture = _Capture()
    reason = traced_by(capture, model, args, kwargs) or "it compiles nothing"
    return capture.found, "" if capture.found is not None else reason


def traced_by(partitioner: CustomPartitionerFn, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Call the model as in a step, and give its joint graphs to a partitioner; return what ended that, if anything."""
    args, kwargs = copies_of((tuple(args), dict(kwargs)))
    patched = inductor.patch(
        custom_partitioner_fn=partitioner, joint_custom_post_pass=Marks(inductor.joint_custom_post_pass)
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
