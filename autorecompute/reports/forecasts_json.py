"""What a config should need, as ``plans --json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory import RankPeak
from autorecompute.plans import Config
from autorecompute.ranges import Bytes, Count, Operations, Ratio, Seconds

if TYPE_CHECKING:
    from autorecompute.memory import Estimate, Forecast, PeakView


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
