"""Budgets and regions of a compiled model: the ways to partition its graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.compiled.forms import INNER
from autorecompute.backends.torch.compiled.joint import (
    BACKWARD,
    POLICY,
    Marks,
    Tags,
    bytes_of,
    cluster_of,
    groups_of,
    owner_of,
    path_of,
)
from autorecompute.backends.torch.compiled.steps import by_work, peak_of, work_again, work_of
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.compiled_peaks import Offered
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.fx import Graph, Node

    from autorecompute.backends.torch.compiled.steps import Call, Cuts, TracedStep
    from autorecompute.backends.torch.find.structure import Structure
    from autorecompute.backends.torch.switch.switchboard import Site

    Key = tuple[str, str]


VALUES: Final = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""Budgets that are offered where they make a difference. At 0 the compiler makes random numbers again in any case."""


def option_of(value: float) -> str:
    """Return the option for a budget: ``budget_0.5``."""
    return f"{BUDGET}{value}"


def value_of(option: str) -> float:
    """Return the budget that an option names, be anything kept under it or not."""
    return float(option.removeprefix(BUDGET).partition("_")[0])


class Asked:
    """Settings of the compiler of this process; puts back those of the script."""

    def __init__(self) -> None:
        self._before: tuple[float, Any] | None = None

    def set(self, budget: float | None, tags: Tags | None = None) -> None:
        """Switch from the next compilation on.

        Args:
            budget: The memory budget; ``None`` for what the script has.
            tags: What is to be done with clusters of operators.
        """
        is_none = budget is None and (tags is None or tags.is_none)
        if self._before is None:
            if is_none:
                return
            self._before = functorch.activation_memory_budget, inductor.joint_custom_post_pass
        own, found = self._before
        functorch.activation_memory_budget = own if budget is None else budget
        if is_none:
            inductor.joint_custom_post_pass = found
            self._before = None
        else:
            inductor.joint_custom_post_pass = Marks(found, tags)


REGION = "ac_graph_id"
"""Under this name a node of a checkpoint says which one it belongs to."""


class Checkpoints:
    """Marks the joint graphs of a step as checkpoints of modules would have them.

    Args:
        site: The blocks.
        option: How they are checkpointed.
        count: How many of them, from the first on.
        groups: The group of each module, by its path.
    """

    def __init__(self, site: Site, option: str, count: int, groups: Mapping[str, str]) -> None:
        self._paths = [path.replace(f".{INNER}", "") for path in site.occurrences[:count]]
        self._keeps_matmuls = option == KEEP_MATMUL
        spared = kept_cluster(site.name, option)
        self._spare = Marks(None, Tags(spared=frozenset({spared} - {""}), groups=groups))

    def __call__(self, call: Call) -> Callable[[Graph], None] | None:
        """Return a marker for the graph of a call.

        A graph with the parameters of a single block is a part of that block, as where blocks are compiled one by one.
        """
        blocks = {self._region_of(name) for name in call.parameters}
        if len(blocks) == 1:
            return None if blocks == {None} else self._mark_all
        return self._mark_within

    def _mark_all(self, graph: Graph) -> None:
        self._mark(graph, lambda node: None if node.meta.get("partitioner_tag") == BACKWARD else 0)

    def _mark_within(self, graph: Graph) -> None:
        self._mark(graph, lambda node: self._region_of(path_of(node)))

    def _mark(self, graph: Graph, region_of: Callable[[Node], int | None]) -> None:
        for node in graph.nodes:
            region = region_of(node) if node.op == "call_function" and POLICY not in node.meta else None
            if region is not None:
                keeps = self._keeps_matmuls and node.target in MATMULS
                node.meta[POLICY] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
                node.meta[REGION] = region
        self._spare(graph)

    def _region_of(self, path: str | None) -> int | None:
        if path is None:
            return None
        return next((at for at, around in enumerate(self._paths) if is_within(path, around)), None)


LEAST_SHARE = 0.02
"""A cluster that is made again and saves a smaller share of all that the compiler keeps by itself is not offered."""

LEAST_WORK = 0.005
"""A cluster is kept where at least so much is not made again for it, as a share of the work of a step."""

MOST_CLUSTERS = 8
"""So many clusters are made again, those that save most."""

MOST_KEPT = 2
"""So many clusters are looked at that could be kept: by themselves, in checkpointed blocks, and under the least budget.
Those are taken that are the most work to make again."""

COUNTS, FEW_COUNTS = 4, 2
"""At so many counts of blocks, evenly apart, a checkpoint is looked at, and one that keeps a cluster; what lies between
is interpolated."""


class Partitions:
    """Cuts the joint graphs of a step in many ways.

    Args:
        step: The graphs.
        structure: That of the model.
        eager_bytes: What lives outside of them between forward and backward pass; ``None`` where all is compiled.
    """

    def __init__(self, step: TracedStep, structure: Structure, eager_bytes: int | None) -> None:
        self._step, self._eager_bytes = step, eager_bytes
        self._groups = groups_of(structure)
        self._none = step.cut()
        self._seen = {self._none.kept_names}
        self._least = LEAST_SHARE * self._none.kept_bytes
        self._work, self._own = max(work_of(self._none), 1.0), work_again(self._none)

    def offer(self, blocks: Sequence[Site]) -> Offered:
        """Return all that makes a difference."""
        budgets = {(GRAPH, option_of(at)): cuts for at in VALUES if self._is_new(cuts := self._step.cut(budget=at))}
        found = {**budgets, **self._recomputed(), **self._kept(), **self._kept_under(list(budgets.items())[-1:])}
        checkpoints = {(site.name, CHECKPOINT): self._checkpointed(site, CHECKPOINT) for site in blocks}
        spared = {key: cuts for site in blocks for key, cuts in self._spared(site, checkpoints).items()}
        peaks = [self._peak(Config(), self._none)]
        peaks += [self._peak(Config(frozenset([Choice(*key)])), cuts) for key, cuts in {**found, **spared}.items()]
        peaks += [self._peak(config, cuts) for config, cuts in self._counts(blocks, checkpoints, spared)]
        kept = {key: self._none.kept_bytes - cuts.kept_bytes for key, cuts in {**found, **spared}.items()}
        return Offered(kept, tuple(peaks))

    def _is_new(self, cuts: Cuts) -> bool:
        """Tell whether something else is kept than by all before, which these join."""
        is_new = cuts.kept_names not in self._seen
        self._seen.add(cuts.kept_names)
        return is_new

    def _cut(self, tags: Tags, budget: float | None = None) -> Cuts:
        marks = Marks(None, tags)
        return self._step.cut(lambda _call: marks, budget)

    def _recomputed(self) -> dict[Key, Cuts]:
        """Return each cluster that the compiler keeps something of, made again, where that saves enough."""
        kept: dict[str, int] = {}
        for halves in self._none.halves:
            for node in {owner_of(node) for node in halves.kept}:
                if (name := cluster_of(node, self._groups)) is not None:
                    kept[name] = kept.get(name, 0) + bytes_of(node)
        names = sorted(name for name, size in kept.items() if size >= self._least)
        cut = {name: self._cut(Tags(recomputed=frozenset([name]), groups=self._groups)) for name in names}
        saving = {
            name: cuts
            for name, cuts in cut.items()
            if self._none.kept_bytes - cuts.kept_bytes >= self._least and self._is_new(cuts)
        }
        by_size = sorted(saving, key=lambda name: saving[name].kept_bytes)[:MOST_CLUSTERS]
        return {(name, RECOMPUTE): saving[name] for name in by_size}

    def _kept(self) -> dict[Key, Cuts]:
        """Clusters that the compiler makes again by itself, kept."""
        cut = {(GRAPH, f"{KEEPING}{name}"): self._cut(self._keep(name)) for name in self._again(self._none)}
        return {key: cuts for key, cuts in cut.items() if self._differs(cuts, self._none)}

    def _kept_under(self, budgets: Sequence[tuple[Key, Cuts]]) -> dict[Key, Cuts]:
        """Clusters that are kept under a budget which has them made again."""
        found: dict[Key, Cuts] = {}
        for (site, option), under in budgets:
            for name in self._again(under):
                cuts = self._cut(self._keep(name), value_of(option))
                if self._differs(cuts, under):
                    found[site, f"{option}_{KEEPING}{name}"] = cuts
        return found

    def _spared(self, site: Site, checkpoints: dict[Key, Cuts]) -> dict[Key, Cuts]:
        """Clusters that are kept in checkpointed blocks."""
        around = checkpoints[site.name, CHECKPOINT]
        inside = [name for name in self._again(around) if is_within(name, site.name)]
        cut = {option: self._checkpointed(site, option) for option in (keeping(site.name, name) for name in inside)}
        return {(site.name, option): cuts for option, cuts in cut.items() if self._differs(cuts, around)}

    def _keep(self, name: str) -> Tags:
        return Tags(kept=frozenset([name]), groups=self._groups)

    def _again(self, cuts: Cuts) -> list[str]:
        """Return the clusters that are the most work to make again."""
        names = dict.fromkeys(name for halves in cuts.halves for name in by_work(halves, self._groups))
        return list(names)[:MOST_KEPT]

    def _differs(self, cuts: Cuts, without: Cuts) -> bool:
        """Tell whether keeping a cluster makes a difference worth a plan, and one that no plan makes yet."""
        is_less_work = work_again(without) - work_again(cuts) >= LEAST_WORK * self._work
        return is_less_work and self._is_new(cuts)

    def _checkpointed(self, site: Site, option: str, count: int | None = None) -> Cuts:
        most = len(site.occurrences)
        return self._step.cut(Checkpoints(site, option, most if count is None else count, self._groups))

    def _counts(
        self, blocks: Sequence[Site], checkpoints: dict[Key, Cuts], spared: dict[Key, Cuts]
    ) -> Iterator[tuple[Config, Cuts]]:
        """Checkpoints at several counts of blocks."""
        for site in blocks:
            options = dict.fromkeys(site.options, COUNTS) | {
                option: FEW_COUNTS for name, option in spared if name == site.name
            }
            for option, parts in options.items():
                most = len(site.occurrences)
                for count in sorted({-(-most * part // parts) for part in range(1, parts + 1)}):
                    if (site.name, option) in spared and count == most:
                        continue
                    is_known = count == most and (site.name, option) in checkpoints
                    cuts = checkpoints[site.name, option] if is_known else self._checkpointed(site, option, count)
                    yield Config(frozenset([Choice(site.name, option, None if count == most else count)])), cuts

    def _peak(self, config: Config, cuts: Cuts) -> CompiledPeak:
        return CompiledPeak(
            config=config,
            peak_bytes=peak_of(cuts, self._eager_bytes),
            kept_bytes=cuts.kept_bytes,
            work=max(work_again(cuts) - self._own, 0.0) / self._work,
        )
