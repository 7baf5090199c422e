"""The joint graphs of a step in the order in which they run: one, or several where a model is compiled in parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from autorecompute.backends.torch.compiled.forms import INNER
from autorecompute.backends.torch.compiled.joint import Halves, JointGraph, trace, traced_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor
    from torch.fx import Graph, GraphModule
    from torch.nn import Module

    Marker = Callable[["Graph"], object]


@dataclass(frozen=True)
class Call:
    """One run of a joint graph in a step.

    Attributes:
        graph: Which, by its place among them.
        parameters: The paths of the trained parameters that it is given.
    """

    graph: int
    parameters: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Cuts:
    """A step whose joint graphs are cut in two.

    Attributes:
        halves: The halves of each call, in the order of the forward pass.
    """

    halves: tuple[Halves, ...]

    @property
    def kept_names(self) -> frozenset[tuple[int, str]]:
        """Return what is kept by each call: equal for cuts that do the same."""
        return frozenset((at, name) for at, halves in enumerate(self.halves) for name in halves.kept_names)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what is kept and was made in the forward pass."""
        return sum(halves.kept_bytes for halves in self.halves)


@dataclass(frozen=True)
class TracedStep:
    """What of a step is compiled.

    Attributes:
        graphs: Its joint graphs.
        calls: Their runs, in the order of the forward pass.
        is_whole: Whether nothing that is trained is outside of them.
    """

    graphs: tuple[JointGraph, ...]
    calls: tuple[Call, ...]
    is_whole: bool

    def cut(self, mark: Callable[[Call], Marker | None] = lambda _call: None, budget: float | None = None) -> Cuts:
        """Return how the compiler would cut each graph.

        Args:
            mark: Tells what marks the operators of a call before that: the same object for calls that are cut alike.
            budget: The memory budget; ``None`` for the script's own.
        """
        known: dict[tuple[int, int], Halves] = {}
        marks = [mark(call) for call in self.calls]
        for call, one in zip(self.calls, marks, strict=True):
            if (call.graph, id(one)) not in known:
                known[call.graph, id(one)] = self.graphs[call.graph].cut(one, budget)
        return Cuts(tuple(known[call.graph, id(one)] for call, one in zip(self.calls, marks, strict=True)))


def trace_step(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[TracedStep | None, str]:
    """Return the joint graphs of a step; ``None`` where there are none, and then why.

    A model that is one graph is traced and not run. Another one runs forward once, operator by operator, and each of
    its graphs keeps no more than it was given.
    """
    original = model._modules.get(INNER) or model
    first, reason = trace(model, args, kwargs)
    if first is None:
        return None, reason
    if first.holds(original):
        return TracedStep((first,), (Call(0),), is_whole=True), ""
    listener = _Listener(original)
    with torch.compiler.set_stance(force_backend=listener.compile):
        reason = traced_by(listener, model, args, kwargs)
    if reason:
        return None, reason
    return listener.step(), ""


class _Listener(CustomPartitionerFn):  # type: ignore[misc]
    """Takes every joint graph, and notes when its forward pass runs.

    Args:
        model: The model that is called, as the script wrote it.
    """

    def __init__(self, model: Module) -> None:
        self._graphs: list[JointGraph] = []
        self._calls: list[Call] = []
        named = {name.replace(f"{INNER}.", ""): one for name, one in model.named_parameters() if one.requires_grad}
        self._trained = {parameter.data_ptr(): name for name, parameter in named.items()}

    def compile(self, graph: GraphModule, inputs: Sequence[Tensor], **options: Any) -> Any:
        """Return what stands in for the compiler: all that it does before it makes kernels."""
        from torch._inductor.compile_fx import compile_fx  # it takes seconds, and a model in one graph needs none of it

        del options
        return compile_fx(graph, inputs, inner_compile=self._make_nothing)

    def __call__(self, graph: GraphModule, inputs: Sequence[object], **options: Any) -> Any:
        """Return the graph cut so that it keeps nothing that it makes: it only runs forward."""
        joint = JointGraph(graph, inputs, options)
        self._graphs.append(joint)
        halves = joint.cut(budget=0)
        return halves.forward, halves.backward

    def uuid(self) -> None:
        """Return no key: nothing of this may be found in a cache."""

    def step(self) -> TracedStep:
        """Return what was taken."""
        given = frozenset().union(*(call.parameters for call in self._calls))
        return TracedStep(tuple(self._graphs), tuple(self._calls), is_whole=given == set(self._trained.values()))

    def _make_nothing(self, graph: GraphModule, _inputs: Sequence[Tensor], **options: Any) -> Any:
        trains = not (options.get("is_backward") or options.get("is_inference"))
        return make_boxed_func(self._noted(graph.forward, len(self._graphs) - 1) if trains else graph.forward)

    def _noted(self, forward: Callable[..., Any], graph: int) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            pointers = [value.data_ptr() for value in given if isinstance(value, torch.Tensor)]
            self._calls.append(Call(graph, frozenset(self._trained[at] for at in pointers if at in self._trained)))
            return forward(*given)

        return noted
