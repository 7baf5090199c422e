"""Steps of a compiled model: their joint graphs, cut as the compiler would cut them under each plan."""

from __future__ import annotations

import collections
import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import torch
from torch._functorch.aot_autograd import make_boxed_func
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.compiled.forms import INNER
from autorecompute.backends.torch.compiled.joint import (
    BACKWARD,
    POLICY,
    Halves,
    JointGraph,
    Marks,
    bytes_of,
    cluster_of,
    groups_of,
    is_view,
    kind_of,
    owner_of,
    path_of,
    traced_by,
)
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.records import (
    BUDGET,
    CHECKPOINT,
    GRAPH,
    KEEP_MATMUL,
    KEEPING,
    RECOMPUTE,
    CompiledPeak,
    keeping,
    kept_cluster,
)
from autorecompute.backends.torch.switch.checkpoints import MATMULS
from autorecompute.plans import Choice, Config

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from torch import Tensor
    from torch.fx import Graph, GraphModule, Node
    from torch.nn import Module

    from autorecompute.backends.torch.find.structure import Structure
    from autorecompute.backends.torch.switch.switchboard import Site

    Marker = Callable[["Graph"], object]
    Cuts = tuple[Halves, ...]
    Key = tuple[str, str]


def kept_names(cuts: Cuts) -> frozenset[tuple[int, str]]:
    """Return the names of what each call keeps: equal for cuts that do the same."""
    return frozenset((at, node.name) for at, halves in enumerate(cuts) for node in halves.kept)


def kept_bytes(cuts: Cuts) -> int:
    """Return the bytes of what is kept and was made in the forward pass."""
    return sum(bytes_of(node) for halves in cuts for node in halves.kept if node.op != "placeholder")


@dataclass(frozen=True)
class TracedStep:
    """Compiled parts of a step.

    Attributes:
        calls: Their runs in the order of the forward pass: for each the place of its graph among them, and the paths of
            the trained parameters that it is given.
        is_whole: True if nothing that is trained is outside of them.
    """

    graphs: tuple[JointGraph, ...]
    calls: tuple[tuple[int, frozenset[str]], ...]
    is_whole: bool

    def cut(
        self, mark: Callable[[frozenset[str]], Marker | None] = lambda _given: None, budget: float | None = None
    ) -> Cuts:
        """Return the halves into which the compiler would cut the graph of each call, in the order of the forward pass.

        ``mark`` returns what marks the operators of a call before that, by the parameters that the call is given: the
        same object for calls that are cut alike.
        """
        cut = functools.cache(lambda graph, one: self.graphs[graph].cut(one, budget))
        return tuple(cut(graph, mark(given)) for graph, given in self.calls)


def trace_step(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[TracedStep | None, str]:
    """Return the joint graphs of a step; ``None`` where there are none, and then why.

    A model that is one graph is traced and not run. Another one runs forward once, operator by operator, and each of
    its graphs keeps no more than it was given.
    """
    original, graphs = model._modules.get(INNER) or model, list[JointGraph]()

    def end(joint: JointGraph) -> NoReturn:
        graphs.append(joint)
        raise RuntimeError("all is known that the compilation was begun for")

    reason = traced_by(end, model, args, kwargs)
    if not graphs:
        return None, reason or "it compiles nothing"
    if graphs[0].holds(original):
        return TracedStep(tuple(graphs), ((0, frozenset()),), is_whole=True), ""
    return _trace_parts(original, model, args, kwargs)


def _trace_parts(
    original: Module, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[TracedStep | None, str]:
    graphs: list[JointGraph] = []
    calls: list[tuple[int, frozenset[str]]] = []
    named = {name.replace(f"{INNER}.", ""): one for name, one in original.named_parameters() if one.requires_grad}
    trained = {parameter.data_ptr(): name for name, parameter in named.items()}

    def cut(joint: JointGraph) -> tuple[GraphModule, GraphModule]:
        """Cut the graph so that it keeps nothing that it makes: it only runs forward."""
        graphs.append(joint)
        halves = joint.cut(budget=0)
        return halves.forward, halves.backward

    def make_nothing(graph: GraphModule, _inputs: Sequence[Tensor], **options: Any) -> Any:
        """Stand in for what makes kernels: note each run of a forward pass."""
        if options.get("is_backward") or options.get("is_inference"):
            return make_boxed_func(graph.forward)
        place = len(graphs) - 1

        def noted(*given: Any) -> Any:
            pointers = [value.data_ptr() for value in given if isinstance(value, torch.Tensor)]
            calls.append((place, frozenset(trained[at] for at in pointers if at in trained)))
            return graph.forward(*given)

        return make_boxed_func(noted)

    def compile_without_kernels(graph: GraphModule, inputs: Sequence[Tensor], **_options: Any) -> Any:
        from torch._inductor.compile_fx import compile_fx  # it takes seconds, and a model in one graph needs none of it

        return compile_fx(graph, inputs, inner_compile=make_nothing)

    with torch.compiler.set_stance(force_backend=compile_without_kernels):
        reason = traced_by(cut, model, args, kwargs)
    if reason:
        return None, reason
    given = frozenset().union(*(parameters for _, parameters in calls))
    return TracedStep(tuple(graphs), tuple(calls), is_whole=given == set(trained.values())), ""


FLOPS_A_BYTE = 10.0  # so many operations take as long as writing a byte: 50 billion a second, and 5 GB, on a core
JOINED = 0.5  # the share of the memory traffic that is left to an operator joined with others in a kernel

AGAIN = 0.35
"""The share of its own work that a recompute costs: it is joined with its reader, and neither written nor fetched. The
search learns by how much it is off (``make bench-compiled``: of a GPT-2 of two layers)."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


def work_again(cuts: Cuts) -> float:
    """Return the work of what backward passes make again, some of it by the compiler's own choice."""
    return AGAIN * sum(_sum(made_again(halves)) for halves in cuts)


def made_again(halves: Halves) -> list[Node]:
    """Return the operators that a backward pass runs again."""
    forward = {node.name for node in halves.forward.graph.nodes if node.op == "call_function"}
    return [node for node in halves.backward.graph.nodes if node.op == "call_function" and node.name in forward]


def by_work(halves: Halves, groups: Mapping[str, str]) -> list[str]:
    """Return the clusters of operators that a backward pass runs again, those of the most work first."""
    work: dict[str, float] = collections.defaultdict(float)
    for node in made_again(halves):
        if (name := cluster_of(node, groups)) is not None:
            work[name] += _work(node)
    return sorted(work, key=lambda name: (-work[name], name))


def _sum(nodes: Iterable[Node]) -> float:
    return sum(_work(node) for node in nodes if node.op == "call_function" and not is_view(node))


def _work(node: Node) -> float:
    flops = _flops(node)
    return bytes_of(node) + flops / FLOPS_A_BYTE if flops else JOINED * bytes_of(node)


def _flops(node: Node) -> float:
    """Return the operations of a matrix product, a convolution or attention; 0 of others, which memory holds up."""
    kind, value = kind_of(node), node.meta.get("val")
    given = [source.meta["val"] for source in node.all_input_nodes if isinstance(source.meta.get("val"), torch.Tensor)]
    if kind in PRODUCTS and isinstance(value, torch.Tensor):
        return 2.0 * math.prod(map(int, value.shape)) * int(given[-2].shape[-1])
    if kind == "convolution" and isinstance(value, torch.Tensor):
        return 2.0 * math.prod(map(int, value.shape)) * math.prod(map(int, given[1].shape[1:]))
    if kind.startswith(ATTENTION) and given:
        return 4.0 * math.prod(map(int, given[0].shape)) * int(given[0].shape[-2])
    return 0.0


LIBRARY = PRODUCTS | {"convolution", "convolution_backward", "embedding_dense_backward", "sort", "topk"}
"""Operators that are calls of a library, beside attention: nothing is joined with them."""

ATTENTION = "_scaled_dot_product"
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var", "var_mean", "any", "all", "argmax", "argmin", "prod"})

OUTSIDE_COPIES = 3
"""The peak of a script's own loss, as a multiple of the model's output: its logarithms, their gradient, and the
gradient of the output."""


def peak_of(cuts: Cuts, eager_bytes: int | None = None) -> int:
    """Return the most bytes alive in a step beyond what is held between two steps.

    Forward, each graph adds what it keeps and returns to what those before it left; backward, they go one by one. A
    last graph that returns a single number has the loss in it. Elsewhere the script makes one of what it returns.

    ``eager_bytes`` live outside of the graphs between forward and backward pass, where a part of the model is not
    compiled; ``None`` where all of it is.
    """
    most = held = 0
    for halves in cuts:
        most = max(most, held + _highest(halves.forward, ()))
        outside = _returned_bytes(halves)
        is_last = halves is cuts[-1]
        backward = _highest(halves.backward, _given_back(halves), _donated(halves))
        most = max(most, held + is_last * outside + backward)
        held += kept_bytes((halves,)) + outside
        has_loss = any(node.meta["val"].numel() == 1 for node in halves.returned if "val" in node.meta)
        if is_last and eager_bytes is None and not has_loss:
            held += (OUTSIDE_COPIES - 1) * outside
    return max(most, held + (eager_bytes or 0))


def _returned_bytes(halves: Halves) -> int:
    returned = {owner_of(node) for node in halves.returned} - {owner_of(node) for node in halves.kept}
    return sum(bytes_of(node) for node in returned if node.op != "placeholder")


def _given_back(halves: Halves) -> set[str]:
    """Return the names of inputs that a backward pass lets go of: what was kept for it, and gradients."""
    kept = {node.name for node in halves.kept}
    made = {node.name for node in halves.kept if owner_of(node).op != "placeholder"}
    return made | {node.name for node in halves.backward.graph.nodes if node.op == "placeholder"} - kept


def _donated(halves: Halves) -> set[str]:
    """Return the names of what was kept and the compiler may write over: it alone holds that, no gradient or result."""
    returned = {owner_of(node) for node in halves.returned}
    owners = {node.name: owner_of(node) for node in halves.kept}
    return {name for name, owner in owners.items() if owner.op != "placeholder" and owner not in returned}


def _highest(module: GraphModule, given: Collection[str], donated: Collection[str] = ()) -> int:
    """Return the most bytes of stored results, and of given inputs, that are alive at once in a half of a step.

    Those inputs are let go of once they were read for the last time; some of them may be written over then.
    """
    outputs = {owner_of(node) for node in module.graph.output_node().all_input_nodes}
    nodes = [node for node in module.graph.nodes if not is_view(node) and node.op != "output"]
    inputs = [node for node in nodes if node.op == "placeholder" and node.name in given]
    stored = _stored(module.graph, [node for node in nodes if node.op == "call_function"], outputs)
    steps = [node for node in nodes if node in stored]

    @functools.cache
    def reads(node: Node) -> frozenset[Node]:
        """Return the stored nodes that a node reads, also through those it is joined with."""
        found: set[Node] = set()
        for source in {owner_of(source) for source in node.all_input_nodes}:
            is_inner = source.op == "call_function" and source not in stored
            found |= reads(source) if is_inner else {source}
        return frozenset(found)

    def taken_over(node: Node, ending: Iterable[Node]) -> int:
        """Return the bytes of a result that is written where one of the same size was, which is read no more."""
        own = [other for other in ending if other.op != "placeholder" or other.name in donated]
        size = bytes_of(node)
        return size if any(bytes_of(other) == size for other in own) else 0

    last = {source: at for at, node in enumerate(steps) for source in reads(node)}
    ending: dict[int, list[Node]] = collections.defaultdict(list)
    mortal = {*steps, *inputs} - outputs
    for source, at in last.items():
        if source in mortal:
            ending[at].append(source)
    alive = most = sum(map(bytes_of, inputs))
    for at, node in enumerate(steps):
        freed = sum(map(bytes_of, ending[at]))
        reused = 0 if _is_library(node) else taken_over(node, ending[at])
        alive += bytes_of(node) - reused
        most = max(most, alive)
        alive -= freed - reused
        if node not in last and node in mortal:
            alive -= bytes_of(node)
    return most


def _stored(graph: Graph, calls: Sequence[Node], outputs: Collection[Node]) -> set[Node]:
    """Return the nodes whose results are written to memory, and not joined with their readers in a kernel."""
    readers = _readers_of(graph)
    depths: dict[Node, int] = {}  # library calls before each node
    for node in calls:
        sources = {owner_of(source) for source in node.all_input_nodes}
        depths[node] = max((depths.get(source, 0) + _is_library(source) for source in sources), default=0)
    return {
        node
        for node in calls
        if node in outputs
        or _is_library(node)
        or kind_of(node) in REDUCTIONS
        or any(_is_library(reader) or depths[reader] > depths[node] for reader in readers[node])
    }


def _readers_of(graph: Graph) -> dict[Node, set[Node]]:
    readers: dict[Node, set[Node]] = collections.defaultdict(set)
    for node in graph.nodes:
        if not is_view(node) and node.op == "call_function":
            for source in node.all_input_nodes:
                readers[owner_of(source)].add(node)
    return readers


def _is_library(node: Node) -> bool:
    kind = kind_of(node)
    return kind in LIBRARY or kind.startswith(ATTENTION)


VALUES: Final = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Budgets that are offered where they make a difference. At 0 the compiler makes random numbers again in any case."""


def option_of(value: float) -> str:
    """Return the option for a budget: ``budget_0.5``."""
    return f"{BUDGET}{value}"


def value_of(option: str) -> float:
    """Return the budget that an option names, be anything kept under it or not."""
    return float(option.removeprefix(BUDGET).partition("_")[0])


REGION = "ac_graph_id"  # under this name a node of a checkpoint says which one it belongs to


def checkpoints_of(
    site: Site, option: str, count: int, groups: Mapping[str, str]
) -> Callable[[frozenset[str]], Callable[[Graph], None] | None]:
    """Return what marks the joint graphs of a step as checkpoints of modules would have them.

    It is given the trained parameters of a graph: with those of a single block it is a part of that block.
    """
    paths = [path.replace(f".{INNER}", "") for path in site.occurrences[:count]]
    spared = kept_cluster(site.name, option)
    spare = Marks(None, groups, spared=frozenset({spared} - {""}))

    def region_of(path: str | None) -> int | None:
        inside = (at for at, around in enumerate(paths) if path is not None and is_within(path, around))
        return next(inside, None)

    def mark(graph: Graph, *, is_one_block: bool) -> None:
        for node in graph.nodes:
            if node.op != "call_function" or POLICY in node.meta:
                continue
            if is_one_block:
                region = None if node.meta.get("partitioner_tag") == BACKWARD else 0
            else:
                region = region_of(path_of(node))
            if region is not None:
                keeps = option == KEEP_MATMUL and node.target in MATMULS
                node.meta[POLICY] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
                node.meta[REGION] = region
        spare(graph)

    def marker_for(parameters: frozenset[str]) -> Callable[[Graph], None] | None:
        blocks = {region_of(name) for name in parameters}
        return None if blocks == {None} else functools.partial(mark, is_one_block=len(blocks) == 1)

    return marker_for


LEAST_SHARE = 0.02
"""A cluster that is made again and saves a smaller share of all that the compiler keeps by itself is not offered."""

LEAST_WORK = 0.005
"""A cluster is kept where at least so much is not made again for it, as a share of the work of a step."""

MOST_CLUSTERS = 8  # so many clusters are made again, those that save most

MOST_KEPT = 2
"""So many clusters are looked at that could be kept: by themselves, in checkpointed blocks, and under the least budget.
Those are taken that are the most work to make again."""

COUNTS, FEW_COUNTS = 4, 2
"""At so many counts of blocks, evenly apart, a checkpoint is looked at, and one that keeps a cluster; what lies between
is interpolated."""


class Partitions:
    """Cuts the joint graphs of a step in many ways."""

    def __init__(self, step: TracedStep, structure: Structure, eager_bytes: int | None) -> None:
        self._step, self._eager_bytes = step, eager_bytes
        self._groups = groups_of(structure)
        self._none = step.cut()
        self._seen = {kept_names(self._none)}
        self._least = LEAST_SHARE * kept_bytes(self._none)
        step_work = sum(_sum((*cut.forward.graph.nodes, *cut.backward.graph.nodes)) for cut in self._none)
        self._work = max(step_work, 1.0)
        self._own = work_again(self._none)

    def offer(self, blocks: Sequence[Site]) -> tuple[dict[Key, int], tuple[CompiledPeak, ...]]:
        """Return all that makes a difference.

        That is options of the compiler by site and option, with the bytes that it keeps less, and the forecasts with
        each plan and without any.
        """
        budgets = {(GRAPH, option_of(at)): cuts for at in VALUES if self._is_new(cuts := self._step.cut(budget=at))}
        found = {**budgets, **self._recomputed(), **self._kept(self._none)}
        for (_, option), cuts in list(budgets.items())[-1:]:
            found |= self._kept(cuts, f"{option}_", value_of(option))
        checkpoints = {(site.name, CHECKPOINT): self._checkpointed(site, CHECKPOINT) for site in blocks}
        spared = {key: cuts for site in blocks for key, cuts in self._spared(site, checkpoints).items()}
        peaks = [self._peak(Config(), self._none)]
        peaks += [self._peak(Config(frozenset([Choice(*key)])), cuts) for key, cuts in {**found, **spared}.items()]
        peaks += [self._peak(config, cuts) for config, cuts in self._counts(blocks, checkpoints, spared)]
        kept = {key: kept_bytes(self._none) - kept_bytes(cuts) for key, cuts in {**found, **spared}.items()}
        return kept, tuple(peaks)

    def _is_new(self, cuts: Cuts) -> bool:
        """Tell whether something else is kept than by all before, which these join."""
        names = kept_names(cuts)
        is_new = names not in self._seen
        self._seen.add(names)
        return is_new

    def _cut(self, budget: float | None = None, **clusters: frozenset[str]) -> Cuts:
        marks = Marks(None, self._groups, **clusters)
        return self._step.cut(lambda _given: marks, budget)

    def _recomputed(self) -> dict[Key, Cuts]:
        """Return each cluster that the compiler keeps something of, made again, where that saves enough."""
        kept: dict[str, int] = {}
        for halves in self._none:
            for node in {owner_of(node) for node in halves.kept}:
                if (name := cluster_of(node, self._groups)) is not None:
                    kept[name] = kept.get(name, 0) + bytes_of(node)
        names = sorted(name for name, size in kept.items() if size >= self._least)
        cut = {name: self._cut(recomputed=frozenset([name])) for name in names}
        saving = {
            name: cuts
            for name, cuts in cut.items()
            if kept_bytes(self._none) - kept_bytes(cuts) >= self._least and self._is_new(cuts)
        }
        by_size = sorted(saving, key=lambda name: kept_bytes(saving[name]))[:MOST_CLUSTERS]
        return {(name, RECOMPUTE): saving[name] for name in by_size}

    def _kept(self, under: Cuts, option: str = "", budget: float | None = None) -> dict[Key, Cuts]:
        """Return the clusters that the compiler makes again, by itself or under a budget, kept."""
        names = self._again(under)
        cut = {(GRAPH, f"{option}{KEEPING}{name}"): self._cut(budget, kept=frozenset([name])) for name in names}
        return {key: cuts for key, cuts in cut.items() if self._differs(cuts, under)}

    def _spared(self, site: Site, checkpoints: dict[Key, Cuts]) -> dict[Key, Cuts]:
        around = checkpoints[site.name, CHECKPOINT]
        inside = [name for name in self._again(around) if is_within(name, site.name)]
        cut = {option: self._checkpointed(site, option) for option in (keeping(site.name, name) for name in inside)}
        return {(site.name, option): cuts for option, cuts in cut.items() if self._differs(cuts, around)}

    def _again(self, cuts: Cuts) -> list[str]:
        """Return the clusters that are the most work to make again."""
        names = dict.fromkeys(name for halves in cuts for name in by_work(halves, self._groups))
        return list(names)[:MOST_KEPT]

    def _differs(self, cuts: Cuts, without: Cuts) -> bool:
        """Tell whether keeping a cluster makes a difference worth a plan, and one that no plan makes yet."""
        is_less_work = work_again(without) - work_again(cuts) >= LEAST_WORK * self._work
        return is_less_work and self._is_new(cuts)

    def _checkpointed(self, site: Site, option: str, count: int | None = None) -> Cuts:
        most = len(site.occurrences)
        return self._step.cut(checkpoints_of(site, option, most if count is None else count, self._groups))

    def _counts(
        self, blocks: Sequence[Site], checkpoints: dict[Key, Cuts], spared: dict[Key, Cuts]
    ) -> Iterator[tuple[Config, Cuts]]:
        for site in blocks:
            options = dict.fromkeys(site.options, COUNTS) | {
                option: FEW_COUNTS for name, option in spared if name == site.name
            }
            for option, parts in options.items():
                key, most = (site.name, option), len(site.occurrences)
                for count in sorted({-(-most * part // parts) for part in range(1, parts + 1)}):
                    if count < most or key not in spared:
                        whole = checkpoints.get(key) if count == most else None
                        choice = Choice(*key, None if count == most else count)
                        yield Config(frozenset([choice])), whole or self._checkpointed(site, option, count)

    def _peak(self, config: Config, cuts: Cuts) -> CompiledPeak:
        return CompiledPeak(
            config=config,
            peak_bytes=peak_of(cuts, self._eager_bytes),
            kept_bytes=kept_bytes(cuts),
            work=max(work_again(cuts) - self._own, 0.0) / self._work,
        )
