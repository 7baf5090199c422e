"""Budgets and regions of a compiled model: the ways to partition its graph."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final

from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.compiled.forms import INNER
from autorecompute.backends.torch.compiled.joint import (
    BACKWARD,
    POLICY,
    Marks,
    bytes_of,
    cluster_of,
    groups_of,
    owner_of,
    path_of,
)
from autorecompute.backends.torch.compiled.steps import by_work, kept_bytes, kept_names, peak_of, work_again, work_of
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
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.fx import Graph

    from autorecompute.backends.torch.compiled.steps import Cuts, TracedStep
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


REGION = "ac_graph_id"
"""Under this name a node of a checkpoint says which one it belongs to."""


def checkpoints_of(
    site: Site, option: str, count: int, groups: Mapping[str, str]
) -> Callable[[frozenset[str]], Callable[[Graph], None] | None]:
    """Return what marks the joint graphs of a step as checkpoints of modules would have them.

    It is given the trained parameters of a graph. One with those of a single block is a part of that block, as where
    blocks are compiled one by one.
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

MOST_CLUSTERS = 8
"""So many clusters are made again, those that save most."""

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
        self._work, self._own = max(work_of(self._none), 1.0), work_again(self._none)

    def offer(self, blocks: Sequence[Site]) -> tuple[dict[Key, int], tuple[CompiledPeak, ...]]:
        """Return all that makes a difference.

        That is options of the compiler by site and option, with the bytes that it keeps less, and the forecasts with
        each plan and without any.
        """
        budgets = {(GRAPH, option_of(at)): cuts for at in VALUES if self._is_new(cuts := self._step.cut(budget=at))}
        found = {**budgets, **self._recomputed(), **self._kept(), **self._kept_under(list(budgets.items())[-1:])}
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

    def _kept(self) -> dict[Key, Cuts]:
        """Return the clusters that the compiler makes again by itself, kept."""
        cut = {(GRAPH, f"{KEEPING}{name}"): self._cut(kept=frozenset([name])) for name in self._again(self._none)}
        return {key: cuts for key, cuts in cut.items() if self._differs(cuts, self._none)}

    def _kept_under(self, budgets: Sequence[tuple[Key, Cuts]]) -> dict[Key, Cuts]:
        found: dict[Key, Cuts] = {}
        for (site, option), under in budgets:
            for name in self._again(under):
                cuts = self._cut(value_of(option), kept=frozenset([name]))
                if self._differs(cuts, under):
                    found[site, f"{option}_{KEEPING}{name}"] = cuts
        return found

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
            kept_bytes=kept_bytes(cuts),
            work=max(work_again(cuts) - self._own, 0.0) / self._work,
        )
