"""Forecasts of peaks as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from autorecompute.memory import Machine, Phase, RankPeak, find_chain
from autorecompute.plans import Config
from autorecompute.ranges import AnyBytes, Bytes, Count, Operations, PositiveBytes, Ratio, Seconds

if TYPE_CHECKING:
    from autorecompute.memory import Effect, Forecast, PeakView, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """Work of a step, and its least time on the machine of ``peak.machine``. No step was run there."""

    step_seconds: Annotated[
        Seconds, "Time of the operators of a step, at the full speeds of the machine; a real step takes longer."
    ]
    flops: Annotated[Operations, "Floating point operations of a step, those of recompute among them."]
    moved_bytes: Annotated[Operations, "Bytes that its operators read and write."]
    flops_again: Annotated[Operations, "Those of them that recompute adds."]
    moved_bytes_again: Annotated[Operations, "Those of them that recompute adds."]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """A config that no other beats in both peak and recompute."""

    config: Annotated[str, "The config in a few words."]
    choices: Annotated[Config, "Its choices."]
    peak_bytes: Annotated[Bytes, "Peak of the process."]
    recompute_share: Annotated[Ratio, "Time of what runs once more, as a share of all kernels of a step."]
    holds_limit: Annotated[bool | None, "True if it should fit; ``None`` without a limit."]
    estimate: Annotated[StepEstimate | None, "Estimate of a step; ``None`` but with ``--fake``."]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigForecast(FrontierConfig):
    """Forecast of a config."""

    live_bytes: Annotated[Bytes, "Tensors that are alive at the peak."]
    stash_bytes: Annotated[Bytes, "Tensors that the forward pass leaves for the backward pass."]
    is_near_limit: Annotated[bool | None, "True if ``holds_limit`` is not sure; ``None`` without a limit."]
    largest_batch: Annotated[
        Count | None, "Up to which batch it should fit, without a margin; ``None`` without a limit or a batch."
    ]
    allocated_bytes: Annotated[
        Bytes | None,
        "Bytes that PyTorch's allocator would have handed out at the peak; ``None`` but for presets with ``--card``.",
    ]
    reserved_bytes: Annotated[
        Bytes | None, "Bytes that it would have taken from the card; ``None`` but for presets with ``--card``."
    ]
    reserved_holds_limit: Annotated[
        bool | None,
        "True if that is within the limit, or without one within the card's memory; ``None`` where ``reserved_bytes`` "
        "is.",
    ]
    rank: Annotated[RankPeak | None, "The parts of one rank's peak; ``None`` but for presets with ``--ranks``."]


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
    peak_of_all_others_bytes: Annotated[
        Bytes | None, "Alive at the peak with every other plan on; ``None`` where that was not profiled."
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPeaks:
    """Forecasts of a preset at each of the batches that were asked for."""

    preset: Annotated[str, "Its name."]
    peak_bytes_by_batch: Annotated[dict[str, Bytes], "Peak of the process, by batch."]
    largest_batch: Annotated[
        Count | None, "The largest of these batches that should fit, 0 where none does; ``None`` without a limit."
    ]


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
        "Forecasts of the configs that no other beats in both peak and recompute, the lowest peak first; empty "
        "where only profiled configs can be forecast.",
    ]
    presets: Annotated[
        tuple[PresetPeaks, ...], "Forecasts of each preset at each of ``--batches``; empty without them."
    ]


def peak_of(view: PeakView) -> Peak:
    """Return timelines, effects and forecasts."""
    estimate = view.none.estimate
    return Peak(
        dims=view.dims,
        profiled_dims=view.model.dims,
        is_predicted=view.is_predicted,
        likely_error=view.model.likely_error,
        worst_error=view.none.error_share,
        limit_bytes=view.limit_bytes,
        machine=estimate.machine if estimate is not None else None,
        timelines={name: _timeline(view, timeline) for name, timeline in view.timelines().items()},
        effects=tuple(_effect(view, effect) for effect in view.effects()),
        forecasts=tuple(_forecast(view, forecast) for forecast in view.forecasts()),
        frontier=tuple(FrontierConfig(**_outline(view, forecast)) for forecast in view.frontier),
        presets=tuple(
            PresetPeaks(
                preset=name,
                peak_bytes_by_batch={str(batch): forecast.peak_bytes for batch, forecast in peaks.items()},
                largest_batch=view.largest_listed(peaks),
            )
            for name, peaks in view.presets_by_batch().items()
            if peaks
        ),
    )


def _outline(view: PeakView, forecast: Forecast) -> dict[str, Any]:
    """Return the fields of ``FrontierConfig``."""
    found = forecast.estimate
    estimate = None
    if found is not None:
        estimate = StepEstimate(
            step_seconds=found.seconds,
            flops=found.operations,
            moved_bytes=found.moved_bytes,
            flops_again=found.operations_again,
            moved_bytes_again=found.moved_bytes_again,
        )
    return {
        "config": view.describe(forecast.config),
        "choices": forecast.config,
        "peak_bytes": forecast.peak_bytes,
        "recompute_share": forecast.recompute_share,
        "holds_limit": _holds(forecast.peak_bytes, view.limit_bytes),
        "estimate": estimate,
    }


def _forecast(view: PeakView, forecast: Forecast) -> ConfigForecast:
    return ConfigForecast(
        **_outline(view, forecast),
        live_bytes=forecast.live_bytes,
        stash_bytes=forecast.stash_bytes,
        is_near_limit=None if view.limit_bytes is None else forecast.is_near(view.limit_bytes),
        largest_batch=view.largest_batch(forecast.config),
        allocated_bytes=forecast.allocated_bytes,
        reserved_bytes=forecast.reserved_bytes,
        reserved_holds_limit=_holds(forecast.reserved_bytes, view.card_limit),
        rank=forecast.rank,
    )


def _holds(number_of_bytes: int | None, limit_bytes: int | None) -> bool | None:
    return None if number_of_bytes is None or limit_bytes is None else number_of_bytes <= limit_bytes


def _timeline(view: PeakView, timeline: Timeline) -> StepTimeline:
    plans, chain = view.model.plans_by_tensor(), find_chain(timeline)
    operations = timeline.profile.operations
    moments = (
        Moment(name=operation.name, operator=operation.operator, phase=operation.phase, live_bytes=live)
        for operation, live in zip(operations, timeline.live_bytes, strict=True)
    )
    largest = (
        Alive(
            bytes=size,
            shape=tensor.shape,
            node=operations[tensor.first].name,
            operator=operations[tensor.first].operator,
            phase=timeline.profile.phase_of(tensor),
            plan=plans[tensor.name].id if tensor.name in plans else None,
        )
        for tensor, size in timeline.largest_at_peak()
    )
    return StepTimeline(
        peak_bytes=timeline.peak_bytes,
        peak_operation=timeline.peak,
        stash_bytes=timeline.stash_bytes,
        backward_operation=timeline.profile.backward,
        operations=tuple(moments),
        recomputed_operations=chain.recomputed,
        recomputed_before_peak=len(chain.operations),
        largest_at_peak=tuple(largest),
    )


def _effect(view: PeakView, effect: Effect) -> PlanEffect:
    none = view.none
    return PlanEffect(
        config=effect.plan.id,
        stash_saving_bytes=none.stash_bytes - effect.alone.stash_bytes,
        peak_saving_bytes=none.live_bytes - effect.alone.live_bytes,
        recompute_share=effect.alone.recompute_share,
        peak_of_all_others_bytes=None if effect.left_out is None else effect.left_out.live_bytes,
    )
