"""With which batch a worker takes its first step, where the tool tells the script's DataLoader the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends import registry
from autorecompute.plans.dimensions import BATCH

if TYPE_CHECKING:
    from autorecompute.training_job import Detection


def known_loader(detection: Detection | None, *, is_watched: bool) -> str:
    """Return the DataLoader that is told the batch before the first step; empty where that has the script's own.

    A worker that exports a model has to begin as the first one did, with the script's own batch: what the export leaves
    behind depends on it, and peaks would not be those of the same process.

    Args:
        detection: What an earlier process of the script has told; ``None`` where there was none.
        is_watched: Whether the process is measured as a whole.
    """
    if detection is None:
        return ""
    is_plain = registry.plain_name() == registry.backend_of(detection.versions).NAME
    return detection.loader if is_plain or is_watched else ""


def begins_too_large(detection: Detection) -> bool:
    """Tell whether a card's first step has more samples than the target, and may not fit where the target does."""
    is_larger = detection.dims.get(BATCH, 0) > detection.batch
    return detection.device.kind == "cuda" and bool(known_loader(detection, is_watched=False)) and is_larger
