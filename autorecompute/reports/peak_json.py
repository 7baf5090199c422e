"""The part ``peak`` of what ``plans --json`` prints; docs/json.md describes each field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute.memory import find_chain

if TYPE_CHECKING:
    from autorecompute.memory import Effect, Forecast, PeakView, Timeline


def peak_as_plain(view: PeakView) -> dict[str, Any]:
    """Timelines, effects and forecasts, all of them predicted from the profiled steps."""
    return {
        "dims": view.dims,
        "profiled_dims": view.model.dims,
        "is_predicted": view.is_predicted,
        "likely_error": view.model.likely_error,
        "worst_error": view.none.error_share,
        "limit_bytes": view.limit_bytes,
        "timelines": {name: _timeline_as_plain(view, timeline) for name, timeline in view.timelines().items()},
        "effects": [_effect_as_plain(view, effect) for effect in view.effects()],
        "forecasts": [_forecast_as_plain(view, forecast) for forecast in view.forecasts()],
    }


def _timeline_as_plain(view: PeakView, timeline: Timeline) -> dict[str, Any]:
    plans, chain = view.model.plans_by_tensor(), find_chain(timeline)
    operations = timeline.profile.operations
    return {
        "peak_bytes": timeline.peak_bytes,
        "peak_operation": timeline.peak,
        "stash_bytes": timeline.stash_bytes,
        "backward_operation": timeline.profile.backward,
        "operations": [
            {"name": operation.name, "operator": operation.operator, "phase": operation.phase, "live_bytes": live}
            for operation, live in zip(operations, timeline.live_bytes, strict=True)
        ],
        "recomputed_operations": chain.recomputed,
        "recomputed_before_peak": len(chain.operations),
        "largest_at_peak": [
            {
                "bytes": size,
                "shape": list(tensor.shape),
                "node": operations[tensor.first].name,
                "operator": operations[tensor.first].operator,
                "phase": operations[tensor.first].phase,
                "plan": plans[tensor.name].id if tensor.name in plans else None,
            }
            for tensor, size in timeline.largest_at_peak()
        ],
    }


def _effect_as_plain(view: PeakView, effect: Effect) -> dict[str, Any]:
    none = view.none
    return {
        "config": effect.plan.id,
        "stash_saving_bytes": none.stash_bytes - effect.alone.stash_bytes,
        "peak_saving_bytes": none.live_bytes - effect.alone.live_bytes,
        "recompute_share": effect.alone.recompute_share,
        "peak_of_all_others_bytes": None if effect.left_out is None else effect.left_out.live_bytes,
    }


def _forecast_as_plain(view: PeakView, forecast: Forecast) -> dict[str, Any]:
    return {
        "config": view.describe(forecast.config),
        "choices": forecast.config.texts,
        "peak_bytes": forecast.peak_bytes,
        "live_bytes": forecast.live_bytes,
        "stash_bytes": forecast.stash_bytes,
        "recompute_share": forecast.recompute_share,
        "holds_limit": None if view.limit_bytes is None else forecast.peak_bytes <= view.limit_bytes,
        "is_near_limit": None if view.limit_bytes is None else forecast.is_near(view.limit_bytes),
        "largest_batch": view.largest_batch(forecast.config),
    }
