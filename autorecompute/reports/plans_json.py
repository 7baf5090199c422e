"""What ``plans --json`` prints; docs/json.md describes each field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute.plans.savings import evaluate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.plans import Activation, Alternative, Cluster
    from autorecompute.reports.overview import Overview, PlanLine


def overviews_as_plain(overviews: Sequence[Overview]) -> dict[str, Any]:
    """The one object, of the first rank with what the others keep; a saving with an unknown dimension is ``None``."""
    overview = overviews[0]
    detection = overview.detection
    return {
        "switched_on": {
            "on": overview.offer.is_on,
            "summary": overview.offer.summary,
            "config": {str(choice): count for choice, count in overview.offer.requested.items()},
            "unknown": list(overview.offer.unknown),
        },
        "plans": [_line_as_plain(line) for line in overview.lines()],
        "insights": _clusters_as_plain(overview),
        "other_ranks": [_rank_as_plain(rank, other) for rank, other in enumerate(overviews) if rank],
        "problems": list(overview.offer.problems),
        "presets": {name: preset.texts for name, preset in detection.space.presets.items()},
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
        "insights": _clusters_as_plain(overview),
    }


def _line_as_plain(line: PlanLine) -> dict[str, Any]:
    plan = line.plan
    return {
        "plan": line.number,
        "status": "ON" if line.is_on else "OFF",
        "config": plan.id,
        "label": plan.label,
        "option": plan.option,
        "frequency": plan.occurrences,
        "counts": plan.counts,
        "saving_bytes": line.saving_bytes,
        "saving_symbolic": plan.saving,
        "saving_bytes_by_batch": {str(batch): saved for batch, saved in line.bytes_by_batch.items()},
        "stated_bytes": line.saving_bytes if plan.stated is None else line.stated_bytes,
        "is_corrected": plan.stated is not None,
        "requested_count": line.requested,
        "recomputed_count": line.recomputed,
    }


def _clusters_as_plain(overview: Overview) -> list[dict[str, Any]]:
    return [
        {
            "frequency": cluster.occurrences,
            "options": [_alternative_as_plain(overview, cluster, way) for way in cluster.alternatives],
        }
        for cluster in overview.offer.clusters
    ]


def _alternative_as_plain(overview: Overview, cluster: Cluster, way: Alternative) -> dict[str, Any]:
    occurrences, dims = cluster.occurrences, overview.dims
    return {
        "config": str(way.choice),
        "option": way.choice.option,
        "requested_count": overview.offer.requested.get(way.choice),
        "saving_bytes": evaluate(f"{occurrences}*({way.saving})", dims),
        "activations": [_activation_as_plain(activation, occurrences, dims) for activation in way.activations],
    }


def _activation_as_plain(activation: Activation, occurrences: int, dims: Mapping[str, int]) -> dict[str, Any]:
    return {
        "output": activation.output,
        "shape": list(activation.shape),
        "element_bytes": activation.element_bytes,
        "saved_percent": activation.saved_percent,
        "reuse_frequency": activation.reuse_frequency,
        "saving_bytes": evaluate(f"{occurrences}*{activation.saving}", dims),
    }
