"""What ``plans`` has to tell, and the records that ``plans --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from autorecompute.codec import ABSENT, INLINED, Absent, Document
from autorecompute.plans import Activation, Config, Offer, Plan
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.ranges import AnyBytes, Count, PositiveCount, Ratio
from autorecompute.reports.peak_json import Peak, peak_of
from autorecompute.training_job import Detection, Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.memory import PeakView
    from autorecompute.plans import Alternative


DOUBLINGS = (-2, -1, 0, 1, 2)
"""The table of batches goes so many doublings down and up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedPlan:
    """A plan."""

    plan: Annotated[PositiveCount, "Its number, from 1."]
    status: Annotated[Literal["ON", "OFF"], "``ON`` if anything is recomputed for it."]
    config: Annotated[str, "The config that switches it on."]
    label: Annotated[str, "The plan in a few words."]
    option: Annotated[str, "The way of recomputing, in the training system's word."]
    frequency: Annotated[Count, "Number of places that it covers."]
    counts: Annotated[bool, "True if it can be switched on for some of them only."]
    saving_bytes: Annotated[
        AnyBytes | None, "Bytes that it saves of what is kept for backward; ``None`` where a dimension is unknown."
    ]
    saving_symbolic: Annotated[str, "The same as an expression in the dimensions."]
    saving_bytes_by_batch: Annotated[
        dict[str, AnyBytes | None], "The same at other batches, by batch; empty where the model has no such dimension."
    ]
    stated_bytes: Annotated[AnyBytes | None, "The saving that the training system states."]
    is_corrected: Annotated[bool, "True if it states another figure."]
    requested_count: Annotated[int | None, "Occurrences that are asked for, -1 for all; ``None`` where it is off."]
    recomputed_count: Annotated[Count, "Number of places at which it is recomputed."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that ``plans`` tells of a rank.

    Attributes:
        detection: The plans and the model, as found.
        offer: The plans under what the environment switches on.
        dims: The dimensions at which savings are evaluated.
        command: A command to go on with, to paste.
    """

    detection: Detection
    offer: Offer
    dims: dict[str, int]
    command: str

    @property
    def batches(self) -> list[int]:
        """Return the batches of the table around the one asked for, none where the model has no such dimension."""
        batch = self.dims.get(BATCH)
        return [] if batch is None else sorted({max(1, int(batch * 2.0**doubling)) for doubling in DOUBLINGS})

    @property
    def plans(self) -> list[Plan]:
        """Return the plans, largest saving at ``dims`` first."""
        return sorted(self.offer.plans, key=lambda plan: (-(evaluate(plan.saving, self.dims) or 0), plan.id))

    def lines(self) -> list[OfferedPlan]:
        """Return the same with their figures."""
        return [self._line(number, plan) for number, plan in enumerate(self.plans, start=1)]

    def _line(self, number: int, plan: Plan) -> OfferedPlan:
        asked = [self.offer.requested.get(choice) for choice in plan.choices]
        recomputed = min(self.offer.recomputed.get(choice, 0) for choice in plan.choices)
        count = min(recomputed, plan.occurrences) if None not in asked else 0
        return OfferedPlan(
            plan=number,
            status="ON" if count > 0 else "OFF",
            config=plan.id,
            label=plan.label,
            option=plan.option,
            frequency=plan.occurrences,
            counts=plan.counts,
            saving_bytes=evaluate(plan.saving, self.dims),
            saving_symbolic=plan.saving,
            saving_bytes_by_batch={
                str(batch): evaluate(plan.saving, {**self.dims, BATCH: batch}) for batch in self.batches
            },
            stated_bytes=evaluate(plan.saving if plan.stated is None else plan.stated, self.dims),
            is_corrected=plan.stated is not None,
            requested_count=None if None in asked else asked[0],
            recomputed_count=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivation(Document):
    """An output that is not kept."""

    activation: Annotated[Activation, INLINED]
    saved_percent: Annotated[Ratio, "Percent of it that are saved."]
    saving_bytes: Annotated[
        AnyBytes | None, "Bytes that it saves over all places; ``None`` where a dimension is unknown."
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightOption:
    """A way to recompute a cluster."""

    config: Annotated[str, "The config that switches it on."]
    option: Annotated[str, "The way of recomputing."]
    requested_count: Annotated[int | None, "Occurrences that are asked for; ``None`` where it is off."]
    saving_bytes: Annotated[
        AnyBytes | None, "Bytes that it saves over all places; ``None`` where a dimension is unknown."
    ]
    activations: Annotated[tuple[KeptActivation, ...], "The outputs that are not kept then."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A cluster of places that are alike."""

    frequency: Annotated[Count, "Number of places."]
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
class SwitchedOn:
    """Recompute that the environment switches on."""

    on: Annotated[bool, "True if anything is."]
    summary: Annotated[str, "The same in a line."]
    config: Annotated[dict[str, int], "Occurrences that each choice is asked for, -1 for all."]
    unknown: Annotated[tuple[str, ...], "Choices that the model does not offer."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans(Document):
    """Activations that can be recomputed."""

    switched_on: Annotated[SwitchedOn, "Recompute that the environment switches on."]
    plans: Annotated[tuple[OfferedPlan, ...], "Each plan offered, the largest saving first."]
    insights: Annotated[tuple[Insight, ...], "Each cluster of places that are alike."]
    other_ranks: Annotated[tuple[Rank, ...], "Each further rank that trains along; all else is the first rank's."]
    problems: Annotated[tuple[str, ...], "Problems with what is switched on, a sentence each."]
    presets: Annotated[dict[str, Config], "The configs that go by a name, each as its choices."]
    dims: Annotated[dict[str, Count], "The dimensions that savings are evaluated at."]
    first_batch_dims: Annotated[dict[str, Count], "The dimensions of the first batch."]
    aliases: Annotated[dict[str, tuple[str, ...]], "The training system's names of each dimension."]
    device: Annotated[Device, "The device that trains."]
    versions: Annotated[dict[str, str], "Software that it trains with."]
    command: Annotated[str, "A command to go on with."]
    peak: Annotated[Peak | Absent, "The parts of the peak; with ``--peak``, ``--picture`` or ``--memory-limit`` only."]

    @classmethod
    def of(cls, overviews: Sequence[Overview], view: PeakView | None = None) -> Plans:
        """Return the plans of the first rank with what the other ranks keep, and the peak where that was asked for."""
        overview = overviews[0]
        detection, offer = overview.detection, overview.offer
        return cls(
            switched_on=SwitchedOn(
                on=offer.is_on,
                summary=offer.summary,
                config={str(choice): count for choice, count in offer.requested.items()},
                unknown=offer.unknown,
            ),
            plans=tuple(overview.lines()),
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
            device=detection.device,
            versions=detection.versions,
            command=overview.command,
            peak=ABSENT if view is None else peak_of(view),
        )


def _insights(overview: Overview) -> tuple[Insight, ...]:
    return tuple(
        Insight(
            frequency=cluster.occurrences,
            options=tuple(_option(overview, cluster.occurrences, way) for way in cluster.alternatives),
        )
        for cluster in overview.offer.clusters
    )


def _option(overview: Overview, occurrences: int, way: Alternative) -> InsightOption:
    return InsightOption(
        config=str(way.choice),
        option=way.choice.option,
        requested_count=overview.offer.requested.get(way.choice),
        saving_bytes=evaluate(f"{occurrences}*({way.saving})", overview.dims),
        activations=tuple(
            KeptActivation(
                activation=activation,
                saved_percent=activation.saved_percent,
                saving_bytes=evaluate(f"{occurrences}*{activation.saving}", overview.dims),
            )
            for activation in way.activations
        ),
    )
