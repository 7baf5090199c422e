"""What the compiler would keep under each plan, found without a step: the distinct plans, and their peaks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from torch.utils.checkpoint import CheckpointPolicy

from autorecompute.backends.torch.checkpoints import MATMULS
from autorecompute.backends.torch.compiled.budgets import VALUES, option_of
from autorecompute.backends.torch.compiled.clusters import bytes_of, cluster_of, groups_of, owner_of, path_of
from autorecompute.backends.torch.compiled.lifetimes import peak_of
from autorecompute.backends.torch.compiled.marks import POLICY, Marks
from autorecompute.backends.torch.compiled.offered import Offered
from autorecompute.backends.torch.compiled.work import work_again, work_of
from autorecompute.backends.torch.extra import CompiledPeak
from autorecompute.backends.torch.options import KEEP_MATMUL, RECOMPUTE
from autorecompute.backends.torch.space import GRAPH
from autorecompute.backends.torch.structure import is_within
from autorecompute.plans import Choice, Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch.fx import Graph

    from autorecompute.backends.torch.compiled.joint import Halves, JointGraph
    from autorecompute.backends.torch.structure import Structure
    from autorecompute.backends.torch.switchboard import Site

T = TypeVar("T")

LEAST_SHARE = 0.02
"""A cluster that makes the compiler keep less by a smaller share of all that it keeps is not offered."""

MOST_CLUSTERS = 8
"""So many clusters are offered, those that save most."""

COUNTS = 4
"""At so many counts of blocks, evenly apart, a checkpoint is looked at; what lies between is interpolated."""

REGION = "ac_graph_id"
"""Under this name a node of a checkpoint says which one it belongs to."""


class Partitions:
    """Cuts one joint graph in many ways.

    Args:
        joint: The graph.
        structure: That of the model.
    """

    def __init__(self, joint: JointGraph, structure: Structure) -> None:
        self._joint = joint
        self._groups = groups_of(structure)
        self._none = joint.cut()
        self._work, self._own = max(work_of(self._none), 1.0), work_again(self._none)

    def offer(self, blocks: Sequence[Site], *, is_whole: bool) -> Offered:
        """All that makes a difference.

        Args:
            blocks: The sites of blocks that can be checkpointed.
            is_whole: Whether the graph is that of the whole model. Of another one, budgets alone are told.
        """
        seen = {self._none.kept_names}
        budgets = {value: halves for value in VALUES if _is_new(halves := self._joint.cut(budget=value), seen)}
        if not is_whole:
            return Offered(self._saved(budgets))
        parts = dict(self._cut_clusters(seen))
        by_size = sorted(parts, key=lambda name: parts[name].kept_bytes)[:MOST_CLUSTERS]
        peaks = [self._peak(Config(), self._none)]
        peaks += [self._peak(_config(GRAPH, option_of(value)), halves) for value, halves in budgets.items()]
        peaks += [self._peak(_config(name, RECOMPUTE), parts[name]) for name in by_size]
        peaks += [self._peak(config, self._joint.cut(mark)) for config, mark in self._checkpoints(blocks)]
        return Offered(self._saved(budgets), self._saved({name: parts[name] for name in by_size}), tuple(peaks))

    def _saved(self, cut: Mapping[T, Halves]) -> dict[T, int]:
        """The bytes that are kept less."""
        return {name: self._none.kept_bytes - halves.kept_bytes for name, halves in cut.items()}

    def _cut_clusters(self, seen: set[frozenset[str]]) -> Iterator[tuple[str, Halves]]:
        """Each cluster that the compiler keeps something of, made again, where that saves enough."""
        kept: dict[str, int] = {}
        for node in {owner_of(node) for node in self._none.kept}:
            if (name := cluster_of(node, self._groups)) is not None:
                kept[name] = kept.get(name, 0) + bytes_of(node)
        least = LEAST_SHARE * self._none.kept_bytes
        for name in sorted(kept):
            if kept[name] >= least:
                halves = self._joint.cut(Marks(None, [name], self._groups))
                if self._none.kept_bytes - halves.kept_bytes >= least and _is_new(halves, seen):
                    yield name, halves

    def _checkpoints(self, blocks: Sequence[Site]) -> Iterator[tuple[Config, Callable[[Graph], None]]]:
        for site in blocks:
            most = len(site.occurrences)
            for count in sorted({-(-most * part // COUNTS) for part in range(1, COUNTS + 1)}):
                for option in site.options:
                    config = _config(site.name, option, None if count == most else count)
                    yield config, _Checkpoints(site.occurrences[:count], keeps_matmuls=option == KEEP_MATMUL)

    def _peak(self, config: Config, halves: Halves) -> CompiledPeak:
        return CompiledPeak(
            config=config,
            peak_bytes=peak_of(halves),
            kept_bytes=halves.kept_bytes,
            work=max(work_again(halves) - self._own, 0.0) / self._work,
        )


class _Checkpoints:
    """Marks a joint graph as checkpoints of modules would have it.

    Args:
        paths: The modules.
        keeps_matmuls: Whether results of matrix products are kept.
    """

    def __init__(self, paths: Sequence[str], *, keeps_matmuls: bool) -> None:
        self._paths, self._keeps_matmuls = paths, keeps_matmuls

    def __call__(self, graph: Graph) -> None:
        for node in graph.nodes:
            path = path_of(node)
            if path is None or POLICY in node.meta:
                continue
            region = next((at for at, around in enumerate(self._paths) if is_within(path, around)), None)
            if region is not None:
                keeps = self._keeps_matmuls and node.target in MATMULS
                node.meta[POLICY] = CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE
                node.meta[REGION] = region


def _is_new(halves: Halves, seen: set[frozenset[str]]) -> bool:
    """Whether a cut keeps something else than those before, which it joins."""
    if halves.kept_names in seen:
        return False
    seen.add(halves.kept_names)
    return True


def _config(site: str, option: str, count: int | None = None) -> Config:
    return Config(frozenset([Choice(site, option, count)]))
