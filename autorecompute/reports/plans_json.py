"""What ``plans --json`` prints; docs/json.md describes each field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans import Activation, Choice, Insight
    from autorecompute.reports.overview import Overview, PlanLine


def overviews_as_plain(overviews: Sequence[Overview]) -> dict[str, Any]:
    """The one object, of the first rank with what the others keep; a saving with an unknown dimension is ``None``."""
    overview = overviews[0]
    detection = overview.detection
    return {
        "memory_optimizer": {
            "on": overview.request.is_on,
            "level": int(overview.request.level),
            "probe_config": overview.probe_config,
            "config": [f"{row.subgraph}:{int(row.option)}:{count}" for row, count in overview.request.counts.items()],
            "unknown": [str(row) for row in overview.unknown],
        },
        "plans": [_line_as_plain(line) for line in overview.lines()],
        "insights": _insights_as_plain(overview, overview.insights),
        "other_ranks": [_rank_as_plain(rank, other) for rank, other in enumerate(overviews) if rank],
        "problems": overview.problems(),
        "has_layer_boundaries": detection.space.has_layer_boundaries,
        "dims": overview.dims,
        "first_batch_dims": detection.dims,
        "aliases": {name: list(aliases) for name, aliases in detection.aliases.items()},
        "device": {"kind": detection.device.kind, "name": detection.device.name},
        "versions": detection.versions,
        "command": overview.command,
    }


def _rank_as_plain(rank: int, overview: Overview) -> dict[str, Any]:
    return {
        "rank": rank,
        "dims": overview.dims,
        "first_batch_dims": overview.detection.dims,
        "insights": _insights_as_plain(overview, overview.insights),
    }


def _line_as_plain(line: PlanLine) -> dict[str, Any]:
    plan = line.plan
    return {
        "plan": line.number,
        "status": "ON" if line.is_on else "OFF",
        "config": plan.key,
        "option": int(plan.option),
        "frequency": plan.frequency,
        "saving_bytes": line.saving_bytes,
        "saving_symbolic": plan.saving_symbolic,
        "saving_bytes_by_batch": {str(batch): saved for batch, saved in line.bytes_by_batch.items()},
        "stated_bytes": line.saving_bytes if plan.stated_symbolic is None else line.stated_bytes,
        "is_corrected": plan.stated_symbolic is not None,
        "requested_count": line.requested,
        "recomputed_count": line.recomputed,
    }


def _insights_as_plain(overview: Overview, insights: Sequence[Insight]) -> list[dict[str, Any]]:
    return [
        {
            "frequency": insight.frequency,
            "options": [_choice_as_plain(overview, choice, insight.frequency) for choice in insight.choices],
        }
        for insight in insights
    ]


def _choice_as_plain(overview: Overview, choice: Choice, frequency: int) -> dict[str, Any]:
    return {
        "config": str(choice.row),
        "option": int(choice.row.option),
        "requested_count": overview.counts.get(choice.row),
        "saving_bytes": evaluate(f"{frequency}*({choice.saving_symbolic})", overview.dims),
        "activations": [
            _activation_as_plain(activation, frequency, overview.dims) for activation in choice.activations
        ],
    }


def _activation_as_plain(activation: Activation, frequency: int, dims: Mapping[str, int]) -> dict[str, Any]:
    return {
        "output": activation.output,
        "shape": list(activation.shape),
        "element_bytes": activation.element_bytes,
        "saved_percent": activation.saved_percent,
        "reuse_frequency": activation.reuse_frequency,
        "saving_bytes": evaluate(f"{frequency}*{activation.saving_symbolic}", dims),
    }
