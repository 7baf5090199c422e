"""Forecasts of peaks as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory import Machine, Phase, RankPeak, find_chain
from autorecompute.plans import Config
from autorecompute.ranges import AnyBytes, Bytes, Count, Operations, PositiveBytes, Ratio, Seconds

if TYPE_CHECKING:
    from autorecompute.memory import Effect, Estimate, Forecast, PeakView, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """What a step computes, and what that takes at least on the machine of ``peak.machine``. No step was run there.

    Attributes:
        step_seconds: Time of the operators of a step, at the full speeds of the machine; a real step takes longer.
        flops: Floating point operations of a step, those of recompute among them.
        moved_bytes: What its operators read and write.
        flops_again: Those of them that recompute adds.
        moved_bytes_again: Those of them that recompute adds.
    """

    step_seconds: Seconds
    flops: Operations
    moved_bytes: Operations
    flops_again: Operations
    moved_bytes_again: Operations

    @classmethod
    def of(cls, estimate: Estimate | None) -> StepEstimate | None:
        """Return the same for a reader; ``None`` where there is none."""
        if estimate is None:
            return None
        return cls(
            step_seconds=estimate.seconds,
            flops=estimate.operations,
            moved_bytes=estimate.moved_bytes,
            flops_again=estimate.operations_again,
            moved_bytes_again=estimate.moved_bytes_again,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigForecast:
    """What a config should need.

    Attributes:
        config: The config in a few words.
        choices: Its choices.
        peak_bytes: Peak of the process.
        live_bytes: Tensors that are alive then.
        stash_bytes: What the forward pass leaves for the backward pass.
        recompute_share: Time of what runs once more, as a share of all kernels of a step.
        holds_limit: Whether it should fit; ``None`` without a limit.
        is_near_limit: Whether that is not sure; ``None`` without a limit.
        largest_batch: Up to which batch it should fit, without a margin; ``None`` without a limit or a batch.
        allocated_bytes: What PyTorch's allocator would have handed out at the peak; ``None`` but for presets with
            ``--card``.
        reserved_bytes: What it would have taken from the card; ``None`` but for presets with ``--card``.
        reserved_holds_limit: Whether that is within the limit, or without one within the card's memory; ``None`` where
            ``reserved_bytes`` is.
        estimate: What a step should take; ``None`` but with ``--fake``.
        rank: What the peak of one rank is made of; ``None`` but for presets with ``--ranks``.
    """

    config: str
    choices: Config
    peak_bytes: Bytes
    live_bytes: Bytes
    stash_bytes: Bytes
    recompute_share: Ratio
    holds_limit: bool | None
    is_near_limit: bool | None
    largest_batch: Count | None
    allocated_bytes: Bytes | None
    reserved_bytes: Bytes | None
    reserved_holds_limit: bool | None
    estimate: StepEstimate | None
    rank: RankPeak | None

    @classmethod
    def of(cls, view: PeakView, forecast: Forecast) -> ConfigForecast:
        """Return one of the view's forecasts."""
        limit = view.limit_bytes
        return cls(
            config=view.describe(forecast.config),
            choices=forecast.config,
            peak_bytes=forecast.peak_bytes,
            live_bytes=forecast.live_bytes,
            stash_bytes=forecast.stash_bytes,
            recompute_share=forecast.recompute_share,
            holds_limit=None if limit is None else forecast.peak_bytes <= limit,
            is_near_limit=None if limit is None else forecast.is_near(limit),
            largest_batch=view.largest_batch(forecast.config),
            allocated_bytes=forecast.allocated_bytes,
            reserved_bytes=forecast.reserved_bytes,
            reserved_holds_limit=_holds(forecast.reserved_bytes, view.card_limit),
            estimate=StepEstimate.of(forecast.estimate),
            rank=forecast.rank,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierConfig:
    """A config that no other beats in both peak and recompute.

    Attributes:
        config: The config in a few words.
        choices: Its choices.
        peak_bytes: Peak of the process.
        recompute_share: Time of what runs once more, as a share of all kernels of a step.
        holds_limit: Whether it should fit; ``None`` without a limit.
        estimate: What a step should take; ``None`` but with ``--fake``.
    """

    config: str
    choices: Config
    peak_bytes: Bytes
    recompute_share: Ratio
    holds_limit: bool | None
    estimate: StepEstimate | None

    @classmethod
    def of(cls, view: PeakView, forecast: Forecast) -> FrontierConfig:
        """Return one of the view's frontier."""
        return cls(
            config=view.describe(forecast.config),
            choices=forecast.config,
            peak_bytes=forecast.peak_bytes,
            recompute_share=forecast.recompute_share,
            holds_limit=None if view.limit_bytes is None else forecast.peak_bytes <= view.limit_bytes,
            estimate=StepEstimate.of(forecast.estimate),
        )


def _holds(reserved_bytes: int | None, limit_bytes: int | None) -> bool | None:
    return None if reserved_bytes is None or limit_bytes is None else reserved_bytes <= limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An operation of a step.

    Attributes:
        name: The training system's name of it.
        operator: What it computes.
        phase: What it is for.
        live_bytes: What is alive meanwhile.
    """

    name: str
    operator: str
    phase: Phase
    live_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Alive:
    """A tensor that is alive at the peak.

    Attributes:
        bytes: Its size in bytes.
        shape: Its sizes, as expressions in the dimensions.
        node: The operation that makes it.
        operator: What that computes.
        phase: What that is for.
        plan: The plan that would save it, or recomputed it; ``None`` without one.
    """

    bytes: Bytes
    shape: tuple[str, ...]
    node: str
    operator: str
    phase: Phase
    plan: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeline:
    """A step of one config.

    Attributes:
        peak_bytes: Alive at the peak.
        peak_operation: Position of the operation during which that is.
        stash_bytes: What the forward pass leaves for the backward pass.
        backward_operation: Position of the first operation after the forward pass.
        operations: All that runs, in order.
        recomputed_operations: How many run once more.
        recomputed_before_peak: How many of them before the peak, in the chain that leads there.
        largest_at_peak: The largest tensors that are alive then.
    """

    peak_bytes: Bytes
    peak_operation: Count
    stash_bytes: Bytes
    backward_operation: Count
    operations: tuple[Moment, ...]
    recomputed_operations: Count
    recomputed_before_peak: Count
    largest_at_peak: tuple[Alive, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEffect:
    """What a plan does.

    Attributes:
        config: The plan.
        stash_saving_bytes: What it saves alone of what the forward pass leaves.
        peak_saving_bytes: What it saves alone at the peak.
        recompute_share: Time of what runs once more, as a share of all kernels of a step.
        peak_of_all_others_bytes: Alive at the peak with every other plan on; ``None`` where that was not profiled.
    """

    config: str
    stash_saving_bytes: AnyBytes
    peak_saving_bytes: AnyBytes
    recompute_share: Ratio
    peak_of_all_others_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetPeaks:
    """What a preset should need at each of the batches that were asked for.

    Attributes:
        preset: Its name.
        peak_bytes_by_batch: Peak of the process, by batch.
        largest_batch: The largest of these batches that should fit, 0 where none does; ``None`` without a limit.
    """

    preset: str
    peak_bytes_by_batch: dict[str, Bytes]
    largest_batch: Count | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What the peak is made of; all of it is predicted from profiled steps.

    Attributes:
        dims: The dimensions that everything is told at.
        profiled_dims: Those of the profiled steps.
        is_predicted: Whether the two differ.
        likely_error: By which share forecasts are off in half of all cases.
        worst_error: The same at worst.
        limit_bytes: The limit that was asked about; ``None`` without one.
        machine: The machine that estimates of time are for; ``None`` but with ``--fake``.
        timelines: By config, the one without recompute first.
        effects: What each plan does.
        forecasts: What each profiled config should need.
        frontier: What those configs should need that no other beats in both peak and recompute, the lowest peak first;
            empty where only profiled configs can be forecast.
        presets: What each preset should need at each of ``--batches``; empty without them.
    """

    dims: dict[str, Count]
    profiled_dims: dict[str, Count]
    is_predicted: bool
    likely_error: Ratio
    worst_error: Ratio
    limit_bytes: PositiveBytes | None
    machine: Machine | None
    timelines: dict[str, StepTimeline]
    effects: tuple[PlanEffect, ...]
    forecasts: tuple[ConfigForecast, ...]
    frontier: tuple[FrontierConfig, ...]
    presets: tuple[PresetPeaks, ...]

    @classmethod
    def of(cls, view: PeakView) -> Peak:
        """Timelines, effects and forecasts."""
        return cls(
            dims=view.dims,
            profiled_dims=view.model.dims,
            is_predicted=view.is_predicted,
            likely_error=view.model.likely_error,
            worst_error=view.none.error_share,
            limit_bytes=view.limit_bytes,
            machine=view.none.estimate.machine if view.none.estimate is not None else None,
            timelines={name: _timeline(view, timeline) for name, timeline in view.timelines().items()},
            effects=tuple(_effect(view, effect) for effect in view.effects()),
            forecasts=tuple(ConfigForecast.of(view, forecast) for forecast in view.forecasts()),
            frontier=tuple(FrontierConfig.of(view, forecast) for forecast in view.frontier),
            presets=_presets(view),
        )


def _presets(view: PeakView) -> tuple[PresetPeaks, ...]:
    """Return nothing where no batches were asked for."""
    return tuple(
        PresetPeaks(
            preset=name,
            peak_bytes_by_batch={str(batch): forecast.peak_bytes for batch, forecast in peaks.items()},
            largest_batch=view.largest_listed(peaks),
        )
        for name, peaks in view.presets_by_batch().items()
        if peaks
    )


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
