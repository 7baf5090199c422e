"""The findings of ``plans``, and the records that ``plans --json`` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from autorecompute.codec import ABSENT, Absent
from autorecompute.memory import Forecast, Machine, Phase
from autorecompute.plans import Activation, Config, Offer, Plan
from autorecompute.plans.savings import BATCH, evaluate
from autorecompute.ranges import INLINED, AnyBytes, Bytes, Count, PositiveBytes, PositiveCount, Ratio
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.memory import Timeline
    from autorecompute.reports.peak_view import PeakView


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """A config that no other beats in both peak and recompute."""

    config: Annotated[str, "The config in a few words."]
    choices: Annotated[Config, "Its choices."]
    forecast: Annotated[Forecast, INLINED]
    holds_limit: Annotated[bool | None, "True if it should fit; ``None`` without a limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigForecast(FrontierConfig):
    """Forecast of a config."""

    is_near_limit: Annotated[bool | None, "True if ``holds_limit`` is not sure; ``None`` without a limit."]
    largest_batch: Annotated[Count | None, "The largest batch that should fit; ``None`` without a limit or a batch."]
    reserved_holds_limit: Annotated[bool | None, "Whether ``reserved_bytes`` fit the limit, else the card, if known."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An operation of a step."""

    name: Annotated[str, "The training system's name of it."]
    operator: Annotated[str, "The operator."]
    phase: Annotated[Phase, "Its phase."]
    live_bytes: Annotated[Bytes, "Bytes alive meanwhile."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """A tensor that is alive at the peak."""

    bytes: Annotated[Bytes, "Its size in bytes."]
    shape: Annotated[tuple[str, ...], "Its sizes, as expressions in the dimensions."]
    node: Annotated[str, "The operation that makes it."]
    operator: Annotated[str, "Its operator."]
    phase: Annotated[Phase, "Its phase."]
    plan: Annotated[str | None, "The plan that would save it, or recomputed it; ``None`` without one."]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """A step of one config."""

    peak_bytes: Annotated[Bytes, "Alive at the peak."]
    peak_operation: Annotated[Count, "Position of the operation during which that is."]
    stash_bytes: Annotated[Bytes, "Tensors that the forward pass leaves for the backward pass."]
    backward_operation: Annotated[Count, "Position of the first operation after the forward pass."]
    operations: Annotated[tuple[Moment, ...], "All that runs, in order."]
    recomputed_operations: Annotated[Count, "Number of those that run once more."]
    recomputed_before_peak: Annotated[Count, "Number of those before the peak, in the chain that leads there."]
    largest_at_peak: Annotated[tuple[Alive, ...], "The largest tensors that are alive then."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEffect:
    """Effect of a plan."""

    config: Annotated[str, "The plan."]
    stash_saving_bytes: Annotated[AnyBytes, "Bytes that it saves alone of what the forward pass leaves."]
    peak_saving_bytes: Annotated[AnyBytes, "Bytes that it saves alone at the peak."]
    recompute_share: Annotated[Ratio, "Time of what runs once more, as a share of all kernels of a step."]
    peak_of_all_others_bytes: Annotated[Bytes | None, "Peak with every other plan on; ``None`` if not profiled."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPeaks:
    """Forecasts of a preset at each of the batches that were asked for."""

    preset: Annotated[str, "Its name."]
    peak_bytes_by_batch: Annotated[dict[str, Bytes], "Peak of the process, by batch."]
    largest_batch: Annotated[Count | None, "The largest of these that should fit, or 0; ``None`` without a limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetAtLength:
    """Forecast of a preset for batches of one length."""

    length: Annotated[PositiveCount, "Tokens of a sample."]
    preset: Annotated[str, "Its name."]
    peak_bytes: Annotated[Bytes, "Peak of the process."]
    largest_batch: Annotated[Count | None, "The largest batch that should fit; ``None`` without a limit."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Parts of the peak, all predicted from profiled steps."""

    dims: Annotated[dict[str, Count], "The dimensions that everything is told at."]
    profiled_dims: Annotated[dict[str, Count], "Those of the profiled steps."]
    is_predicted: Annotated[bool, "True if the two differ."]
    likely_error: Annotated[Ratio, "By which share forecasts are off in half of all cases."]
    worst_error: Annotated[Ratio, "The same at worst."]
    limit_bytes: Annotated[PositiveBytes | None, "The limit that was asked about; ``None`` without one."]
    machine: Annotated[Machine | None, "The machine that estimates of time are for; ``None`` but with ``--fake``."]
    timelines: Annotated[dict[str, StepTimeline], "By config, the one without recompute first."]
    effects: Annotated[tuple[PlanEffect, ...], "Effect of each plan."]
    forecasts: Annotated[tuple[ConfigForecast, ...], "Forecast of each profiled config."]
    frontier: Annotated[
        tuple[FrontierConfig, ...],
        "Configs that no other beats in peak and recompute, the lowest peak first; empty without a full model.",
    ]
    presets: Annotated[tuple[PresetPeaks, ...], "Each preset at each of ``--batches``; empty without them."]
    lengths: Annotated[tuple[PresetAtLength, ...], "Each preset at lengths up to ``--longest``; empty without it."]


def peak_of(view: PeakView) -> Peak:
    """Return timelines, effects and forecasts."""
    none, limit = view.none, view.limit_bytes
    return Peak(
        dims=view.dims,
        profiled_dims=view.model.dims,
        is_predicted=view.is_predicted,
        likely_error=view.model.likely_error,
        worst_error=none.error_share,
        limit_bytes=limit,
        machine=none.machine,
        timelines={name: _timeline(view, timeline) for name, timeline in view.timelines().items()},
        effects=tuple(
            PlanEffect(
                config=plan.id,
                stash_saving_bytes=none.stash_bytes - alone.stash_bytes,
                peak_saving_bytes=none.live_bytes - alone.live_bytes,
                recompute_share=alone.recompute_share,
                peak_of_all_others_bytes=None if left_out is None else left_out.live_bytes,
            )
            for plan, alone, left_out in view.model.effects(view.dims)
        ),
        forecasts=tuple(
            ConfigForecast(
                **_forecast(view, forecast),
                is_near_limit=None if limit is None else forecast.is_near(limit),
                largest_batch=view.largest_batch(forecast.config),
                reserved_holds_limit=_holds(forecast.reserved_bytes, view.card_limit),
            )
            for forecast in view.model.forecasts(view.dims)
        ),
        frontier=tuple(FrontierConfig(**_forecast(view, forecast)) for forecast in view.frontier),
        presets=tuple(
            PresetPeaks(
                preset=name,
                peak_bytes_by_batch={str(batch): forecast.peak_bytes for batch, forecast in peaks.items()},
                largest_batch=view.largest_listed(peaks),
            )
            for name, peaks in view.presets_by_batch().items()
            if peaks
        ),
        lengths=tuple(
            PresetAtLength(
                length=length,
                preset=name,
                peak_bytes=forecast.peak_bytes,
                largest_batch=at_length.largest_batch(forecast.config),
            )
            for length, name, at_length, forecast in view.presets_by_length()
        ),
    )


def _forecast(view: PeakView, forecast: Forecast) -> dict[str, Any]:
    return {
        "config": view.model.space.describe(forecast.config),
        "choices": forecast.config,
        "forecast": forecast,
        "holds_limit": _holds(forecast.peak_bytes, view.limit_bytes),
    }


def _holds(number_of_bytes: int | None, limit_bytes: int | None) -> bool | None:
    return None if number_of_bytes is None or limit_bytes is None else number_of_bytes <= limit_bytes


def _timeline(view: PeakView, timeline: Timeline) -> StepTimeline:
    plans, (before, after) = view.model.plans_by_tensor(), timeline.recomputed()
    operations = timeline.profile.operations
    return StepTimeline(
        peak_bytes=timeline.peak_bytes,
        peak_operation=timeline.peak,
        stash_bytes=timeline.stash_bytes,
        backward_operation=timeline.profile.backward,
        operations=tuple(
            Moment(name=one.name, operator=one.operator, phase=one.phase, live_bytes=live)
            for one, live in zip(operations, timeline.live_bytes, strict=True)
        ),
        recomputed_operations=len(before) + len(after),
        recomputed_before_peak=len(before),
        largest_at_peak=tuple(
            Alive(
                bytes=size,
                shape=tensor.shape,
                node=operations[tensor.first].name,
                operator=operations[tensor.first].operator,
                phase=timeline.profile.phase_of(tensor),
                plan=plans[tensor.name].id if tensor.name in plans else None,
            )
            for tensor, size in timeline.largest_at_peak()
        ),
    )


DOUBLINGS = (-2, -1, 0, 1, 2)  # the table of batches goes so many doublings down and up


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
    saving_bytes: Annotated[AnyBytes | None, "Saving of what is kept for backward; ``None`` if a dimension is unknown."]
    saving_symbolic: Annotated[str, "The same as an expression in the dimensions."]
    saving_bytes_by_batch: Annotated[dict[str, AnyBytes | None], "The same by batch; empty without that dimension."]
    stated_bytes: Annotated[AnyBytes | None, "The saving that the training system states."]
    is_corrected: Annotated[bool, "True if it states another figure."]
    equal_within: Annotated[Ratio, "Most by which gradients may differ, relative to their largest; 0 for not at all."]
    requested_count: Annotated[int | None, "Occurrences that are asked for, -1 for all; ``None`` where it is off."]
    recomputed_count: Annotated[Count, "Number of places at which it is recomputed."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All that ``plans`` tells of a rank: savings at these dimensions, and a command to go on with, to paste."""

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
            equal_within=plan.equal_within,
            requested_count=None if None in asked else asked[0],
            recomputed_count=count,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptActivation:
    """An output that is not kept."""

    activation: Annotated[Activation, INLINED]
    saving_bytes: Annotated[AnyBytes | None, "What it saves over all places; ``None`` where a dimension is unknown."]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingDevice:
    """Device that a model trains on."""

    kind: Annotated[str, "``cpu`` or ``cuda``."]
    name: Annotated[str, "The processor's or card's name."]


@dataclass(frozen=True, slots=True, kw_only=True)
class InsightOption:
    """A way to recompute a cluster."""

    config: Annotated[str, "The config that switches it on."]
    option: Annotated[str, "The way of recomputing."]
    requested_count: Annotated[int | None, "Occurrences that are asked for; ``None`` where it is off."]
    saving_bytes: Annotated[AnyBytes | None, "Saving over all places; ``None`` if a dimension is unknown."]
    activations: Annotated[tuple[KeptActivation, ...], "The outputs that are not kept then."]


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A cluster of places that are alike."""

    frequency: Annotated[Count, "Number of places."]
    options: Annotated[tuple[InsightOption, ...], "Ways to recompute them, the preferred first: one takes effect."]


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
class Plans:
    """Activations that can be recomputed."""

    switched_on: Annotated[SwitchedOn, "Recompute that the environment switches on."]
    plans: Annotated[tuple[OfferedPlan, ...], "Each plan offered, the largest saving first."]
    insights: Annotated[tuple[Insight, ...], "Each cluster of places that are alike."]
    other_ranks: Annotated[tuple[Rank, ...], "Each further rank that trains along; all else is the first rank's."]
    problems: Annotated[tuple[str, ...], "Problems with what is switched on, a sentence each."]
    notes: Annotated[tuple[str, ...], "What a reader of the plans has to know, and what was left alone and why."]
    presets: Annotated[dict[str, Config], "The configs that go by a name, each as its choices."]
    dims: Annotated[dict[str, Count], "The dimensions that savings are evaluated at."]
    first_batch_dims: Annotated[dict[str, Count], "The dimensions of the first batch."]
    aliases: Annotated[dict[str, tuple[str, ...]], "The training system's names of each dimension."]
    device: Annotated[TrainingDevice, "The device that trains."]
    versions: Annotated[dict[str, str], "Software that it trains with."]
    command: Annotated[str, "A command to go on with."]
    peak: Annotated[Peak | Absent, "The parts of the peak, where it was asked for."]

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
            notes=offer.notes,
            presets=detection.space.presets,
            dims=overview.dims,
            first_batch_dims=detection.dims,
            aliases=detection.aliases,
            device=TrainingDevice(kind=detection.device.kind, name=detection.device.name),
            versions=detection.versions,
            command=overview.command,
            peak=ABSENT if view is None else peak_of(view),
        )


def _insights(overview: Overview) -> tuple[Insight, ...]:
    return tuple(
        Insight(
            frequency=cluster.occurrences,
            options=tuple(
                InsightOption(
                    config=str(way.choice),
                    option=way.choice.option,
                    requested_count=overview.offer.requested.get(way.choice),
                    saving_bytes=evaluate(f"{cluster.occurrences}*({way.saving})", overview.dims),
                    activations=tuple(
                        KeptActivation(
                            activation=activation,
                            saving_bytes=evaluate(f"{cluster.occurrences}*{activation.saving}", overview.dims),
                        )
                        for activation in way.activations
                    ),
                )
                for way in cluster.alternatives
            ),
        )
        for cluster in overview.offer.clusters
    )
