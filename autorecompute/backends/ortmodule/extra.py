"""What only ORT's own code reads of a detection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from autorecompute import codec
from autorecompute.plans import Cluster, Plan

if TYPE_CHECKING:
    from autorecompute.training_job import Detection


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtDetection:
    """The part of a detection that only ORT has.

    Attributes:
        layer_plans: Plans within the boundaries of transformer layers, which the levels switch on.
        layer_clusters: The activations that those are about.
        features: What optional parts ORT has here, and its model needs, by their names there.
    """

    layer_plans: tuple[Plan, ...] = ()
    layer_clusters: tuple[Cluster, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, detection: Detection) -> Self:
        """Return that of what a worker told."""
        return codec.from_plain(detection.extra, cls)


def has_layer_boundaries(plans: tuple[Plan, ...], layer_plans: tuple[Plan, ...]) -> bool:
    """Tell whether looking at layer boundaries changes any plan; ORT finds none in post-LN models."""
    # ORT's stated saving of a plan with several outputs varies between runs: its nodes are what tells plans apart.
    return {(plan.id, plan.occurrences) for plan in plans} != {(plan.id, plan.occurrences) for plan in layer_plans}
