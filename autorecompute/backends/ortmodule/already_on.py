"""What ORT makes of the recompute that a user has switched on already, and what it offers under it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.extra import OrtDetection
from autorecompute.backends.ortmodule.grammar import (
    ALL_OCCURRENCES,
    Level,
    config_of_level,
    write_row,
)
from autorecompute.plans import Choice, Config, Offer, saving_of
from autorecompute.plans.savings import explain_worthless

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.plans import Cluster, Plan
    from autorecompute.training_job import Detection

NOTES = (
    "by itself a plan can save less: what it recomputes from is kept instead (an Add+ behind a Dropout, for one)",
    (
        "several plans at a time: list them in the JSON file that ORTMODULE_MEMORY_OPT_CONFIG names (ORT 1.19), "
        "or join them by commas in the variable (1.17, 1.18); ORTMODULE_MEMORY_OPT_LEVEL=1 or 2 takes all in layers"
    ),
)
STATED_NOTE = (
    "! ORT counts only one output of a node that keeps several, and miscounts buffers that outputs of two plans lie "
    "in; the saving here is right in both"
)

NEVER_RECOMPUTED = (
    "ORT recomputes no convolution, pooling, Relu, Sigmoid, Tanh or batch normalization, nor anything that would need "
    "one of them again."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the variables of ORTModule ask for: plans, or a level that chooses them.

    Attributes:
        level: ORT's level; one above 0 leaves the plans unread.
        counts: Each choice with the occurrences it is asked for, -1 for all.
    """

    level: Level = Level.CHOSEN
    counts: Mapping[Choice, int] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        """Tell whether ORT says that its memory optimizer is on; it says so even where it knows none of the plans."""
        return self.level is not Level.CHOSEN or bool(self.counts)

    def resolve(self, plans: Sequence[Plan]) -> dict[Choice, int]:
        """Return the choices that take effect, each with its count.

        Args:
            plans: What is offered under the level, largest saving first. A level takes them in this order, and of two
                options for one subgraph ORT keeps the last.
        """
        offered = [choice for plan in plans for choice in plan.choices]
        if self.level is Level.CHOSEN:
            return {choice: count for choice, count in self.counts.items() if choice in offered}
        last = {choice.site: choice for choice in offered if int(choice.option) <= self.level}
        return dict.fromkeys(last.values(), ALL_OCCURRENCES)

    def unknown(self, plans: Sequence[Plan]) -> list[str]:
        """Return the plans that ORT ignores without a word, as the graph has none of them."""
        offered = {choice for plan in plans for choice in plan.choices}
        return sorted(write_row(choice) for choice in self.counts if choice not in offered)


def make_offer(detection: Detection, request: Request, probe_config: str, dims: Mapping[str, int]) -> Offer:
    """Return the plans that ORT offers under a request, and what it would recompute.

    Args:
        detection: What was found.
        request: What the environment switches on.
        probe_config: How ORT looks for plans under the level, in its own words.
        dims: The dimensions at which the plans are weighed.
    """
    extra = OrtDetection.of(detection)
    is_chosen = request.level is Level.CHOSEN
    plans = detection.plans if is_chosen else extra.layer_plans
    clusters = detection.clusters if is_chosen else extra.layer_clusters
    counts, unknown = request.resolve(plans), request.unknown(plans)
    problems = [f"no plan {row} in this graph: ORT ignores it without a word" for row in unknown]
    config = Config(frozenset(counts)) if is_chosen else _config_of(request.level, detection)
    return Offer(
        plans=tuple(sorted(plans, key=lambda plan: (-(plan.saving_bytes or 0), plan.id))),
        clusters=clusters,
        summary=_summarize(request, probe_config),
        is_on=request.is_on,
        config=config,
        requested=counts,
        recomputed={choice: count_recomputed(choice, counts, clusters) for choice in counts},
        unknown=tuple(unknown),
        problems=(*problems, *_describe_counts(counts, clusters)),
        notes=NOTES,
        stated_note=STATED_NOTE,
        worthless=_explain_worthless(plans, dims),
    )


def count_recomputed(choice: Choice, counts: Mapping[Choice, int], clusters: Sequence[Cluster]) -> int:
    """Return how many nodes ORT 1.17 to 1.19 recomputes for a choice.

    All it is offered for, all but one for a count of 0.

    Of two options for one node the first takes effect.

    Args:
        choice: The choice.
        counts: The choices that take effect, each with its count.
        clusters: What they are offered for.
    """
    if choice not in counts:
        return 0
    nodes = sum(
        cluster.occurrences
        for cluster in clusters
        if next((way.choice for way in cluster.alternatives if way.choice in counts), None) == choice
    )
    return max(0, nodes - (counts[choice] == 0))


def _config_of(level: Level, detection: Detection) -> Config:
    name = f"level_{int(level)}"
    return detection.own_presets.get(name, config_of_level(level))


def _summarize(request: Request, probe_config: str) -> str:
    on = "ON" if request.is_on else "OFF"
    rows = ", ".join(write_row(choice, count) for choice, count in request.counts.items())
    config = rows or ("set by the level" if request.is_on else "none")
    return f"Memory Optimizer: {on}   level {int(request.level)}, probe config {probe_config}, config: {config}"


def _describe_counts(counts: Mapping[Choice, int], clusters: tuple[Cluster, ...]) -> Iterator[str]:
    for choice, count in counts.items():
        _, offered = saving_of(choice, clusters)
        recomputed = count_recomputed(choice, counts, clusters)
        if recomputed != (offered if count == ALL_OCCURRENCES else count):
            asked = "all" if count == ALL_OCCURRENCES else str(count)
            yield f"{write_row(choice, count)} asks for {asked} of {offered}; ORT recomputes {recomputed}"


def _explain_worthless(plans: Sequence[Plan], dims: Mapping[str, int]) -> str:
    found = explain_worthless(plans, dims)
    return f"{found} {NEVER_RECOMPUTED}" if found else ""
