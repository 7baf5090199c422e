"""Records that ``plans --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from autorecompute.codec import ABSENT, Absent, Document
from autorecompute.plans import Config
from autorecompute.plans.savings import evaluate
from autorecompute.ranges import AnyBytes, Bytes, Count, PositiveCount, Ratio
from autorecompute.reports.peak_json import Peak

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.memory import PeakView
    from autorecompute.plans import Activation, Alternative, Cluster
    from autorecompute.reports.plans_text import Overview, PlanLine


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedOn:
    """Recompute that the environment switches on."""

    on: Annotated[bool, "Whether anything is."]
    summary: Annotated[str, "The same in a line."]
    config: Annotated[dict[str, int], "How many occurrences each choice is asked for, -1 for all."]
    unknown: Annotated[tuple[str, ...], "What the model does not offer."]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPlan:
    """A plan."""

    plan: Annotated[PositiveCount, "Its number, from 1."]
    status: Annotated[Literal["ON", "OFF"], "Whether it is switched on."]
    config: Annotated[str, "What to switch on."]
    label: Annotated[str, "The plan in a few words."]
    option: Annotated[str, "How it is recomputed, in the training system's word."]
    frequency: Annotated[Count, "How many places it covers."]
    counts: Annotated[bool, "Whether it can be switched on for some of them only."]
    saving_bytes: Annotated[
        AnyBytes | None, "What it saves of what is kept for backward; ``None`` where a dimension is unknown."
    ]
    saving_symbolic: Annotated[str, "The same as an expression in the dimensions."]
    saving_bytes_by_batch: Annotated[dict[str, AnyBytes | None], "The same at other batches, by batch."]
    stated_bytes: Annotated[AnyBytes | None, "What the training system states."]
    is_corrected: Annotated[bool, "Whether it states another figure."]
    requested_count: Annotated[int | None, "How many occurrences are asked for, -1 for all; ``None`` where it is off."]
    recomputed_count: Annotated[Count, "At how many places it is recomputed."]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivation:
    """An output that is not kept."""

    output: Annotated[Count, "Which output of the operation, from 0."]
    shape: Annotated[tuple[str, ...], "Its sizes, as expressions in the dimensions."]
    element_bytes: Annotated[Bytes, "Bytes of one element."]
    saved_percent: Annotated[Ratio, "Which share of it is saved."]
    reuse_frequency: Annotated[Count, "In how many places it lies in a buffer that another output has left."]
    saving_bytes: Annotated[AnyBytes | None, "What it saves over all places; ``None`` where a dimension is unknown."]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightOption:
    """A way to recompute a cluster."""

    config: Annotated[str, "What to switch on."]
    option: Annotated[str, "How it is recomputed."]
    requested_count: Annotated[int | None, "How many occurrences are asked for; ``None`` where it is off."]
    saving_bytes: Annotated[AnyBytes | None, "What it saves over all places; ``None`` where a dimension is unknown."]
    activations: Annotated[tuple[KeptActivation, ...], "What is not kept then."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A cluster of places that are alike."""

    frequency: Annotated[Count, "How many places."]
    options: Annotated[
        tuple[InsightOption, ...], "Ways to recompute them, mutually exclusive, in the order of preference."
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """A further rank."""

    rank: Annotated[PositiveCount, "Its number, from 1."]
    dims: Annotated[dict[str, Count], "The dimensions that its savings are evaluated at."]
    first_batch_dims: Annotated[dict[str, Count], "The dimensions of its first batch."]
    insights: Annotated[tuple[Insight, ...], "Each of its clusters of places that are alike."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDevice:
    """Device that a model trains on."""

    kind: Annotated[str, "``cpu`` or ``cuda``."]
    name: Annotated[str, "The processor's or card's name."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans(Document):
    """Activations that can be recomputed."""

    switched_on: Annotated[SwitchedOn, "What the environment switches on."]
    plans: Annotated[tuple[OfferedPlan, ...], "Each plan offered, the largest saving first."]
    insights: Annotated[tuple[Insight, ...], "Each cluster of places that are alike."]
    other_ranks: Annotated[tuple[Rank, ...], "Each further rank that trains along; all else is the first rank's."]
    problems: Annotated[tuple[str, ...], "What is wrong with what is switched on, a sentence each."]
    presets: Annotated[dict[str, Config], "The configs that go by a name, each as its choices."]
    dims: Annotated[dict[str, Count], "The dimensions that savings are evaluated at."]
    first_batch_dims: Annotated[dict[str, Count], "The dimensions of the first batch."]
    aliases: Annotated[dict[str, tuple[str, ...]], "The training system's names of each dimension."]
    device: Annotated[TrainingDevice, "Where it trains."]
    versions: Annotated[dict[str, str], "Software that it trains with."]
    command: Annotated[str, "A command to go on with."]
    peak: Annotated[
        Peak | Absent, "What the peak is made of; with ``--peak``, ``--picture`` or ``--memory-limit`` only."
    ]

    @classmethod
    def of(cls, overviews: Sequence[Overview], view: PeakView | None = None) -> Plans:
        """Return the plans of the first rank with what the other ranks keep.

        Args:
            overviews: What each rank found.
            view: What the peak is made of, where that was asked for.
        """
        overview = overviews[0]
        detection, offer = overview.detection, overview.offer
        return cls(
            switched_on=SwitchedOn(
                on=offer.is_on,
                summary=offer.summary,
                config={str(choice): count for choice, count in offer.requested.items()},
                unknown=offer.unknown,
            ),
            plans=tuple(map(_offered, overview.lines())),
            insights=_insights(overview),
            other_ranks=tuple(
                Rank(rank=rank, dims=other.dims, first_batch_dims=other.detection.dims, insights=_insights(other))
                for rank, other in enumerate(overviews)
                if rank
            ),
            problems=offer.problems,
            presets=detection.space.presets,
            dims=overview.dims,
            first_batch_dims=detection.dims,
            aliases=detection.aliases,
            device=TrainingDevice(kind=detection.device.kind, name=detection.device.name),
            versions=detection.versions,
            command=overview.command,
            peak=ABSENT if view is None else Peak.of(view),
        )


def _offered(line: PlanLine) -> OfferedPlan:
    plan = line.plan
    return OfferedPlan(
        plan=line.number,
        status="ON" if line.is_on else "OFF",
        config=plan.id,
        label=plan.label,
        option=plan.option,
        frequency=plan.occurrences,
        counts=plan.counts,
        saving_bytes=line.saving_bytes,
        saving_symbolic=plan.saving,
        saving_bytes_by_batch={str(batch): saved for batch, saved in line.bytes_by_batch.items()},
        stated_bytes=line.saving_bytes if plan.stated is None else line.stated_bytes,
        is_corrected=plan.stated is not None,
        requested_count=line.requested,
        recomputed_count=line.recomputed,
    )


def _insights(overview: Overview) -> tuple[Insight, ...]:
    return tuple(
        Insight(
            frequency=cluster.occurrences,
            options=tuple(_option(overview, cluster, way) for way in cluster.alternatives),
        )
        for cluster in overview.offer.clusters
    )


def _option(overview: Overview, cluster: Cluster, way: Alternative) -> InsightOption:
    occurrences, dims = cluster.occurrences, overview.dims
    return InsightOption(
        config=str(way.choice),
        option=way.choice.option,
        requested_count=overview.offer.requested.get(way.choice),
        saving_bytes=evaluate(f"{occurrences}*({way.saving})", dims),
        activations=tuple(_kept(activation, occurrences, dims) for activation in way.activations),
    )


def _kept(activation: Activation, occurrences: int, dims: Mapping[str, int]) -> KeptActivation:
    return KeptActivation(
        output=activation.output,
        shape=activation.shape,
        element_bytes=activation.element_bytes,
        saved_percent=activation.saved_percent,
        reuse_frequency=activation.reuse_frequency,
        saving_bytes=evaluate(f"{occurrences}*{activation.saving}", dims),
    )
