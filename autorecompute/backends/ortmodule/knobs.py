"""Settings of ORTModule besides recompute: where they can be tried.

Read from the packages of ONNX Runtime 1.17.3, 1.18.0 and 1.19.2 (``training/ortmodule/options.py`` and what reads it).
Imports neither torch nor ONNX Runtime: the controller asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.environment import (
    LAYER_BOUNDARIES,
    MEM_EFFICIENT_GRADIENTS,
    Level,
    OrtDetection,
    has_layer_boundaries,
    level_of,
)
from autorecompute.backends.ortmodule.installation import parse_release

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.backends.interface import Knob
    from autorecompute.plans import Config, Plan
    from autorecompute.training_job import Detection

CUSTOM_AUTOGRAD = "custom_autograd"
"""The feature of a detection that ORTModule's support for custom autograd functions is on."""


def why_not(knob: Knob, config: Config, detection: Detection, inherited: Mapping[str, str]) -> str:
    """Return why a knob cannot be tried on a config, in words; empty where it can."""
    versions, extra = detection.versions, OrtDetection.of(detection)
    taken = next((name for name in knob.variables if name in inherited), None)
    is_level = level_of(config) is not Level.CHOSEN
    has_boundaries = has_layer_boundaries(detection.plans, extra.layer_plans)
    obstacles = (
        (LAYER_BOUNDARIES, config.is_none, "the winner recomputes nothing"),
        (LAYER_BOUNDARIES, is_level, "the winner is a level of ORT's, which ends at the boundaries by itself"),
        (LAYER_BOUNDARIES, not has_boundaries, "ORT finds the same plans with layer boundaries as without"),
        (
            MEM_EFFICIENT_GRADIENTS,
            parse_release(versions["onnxruntime"]) >= (1, 19),
            "ONNX Runtime 1.19 raises a TypeError with it",
        ),
        (
            MEM_EFFICIENT_GRADIENTS,
            CUSTOM_AUTOGRAD not in extra.features,
            "it needs ORTModule's support for custom autograd functions",
        ),
        (knob, taken is not None, f"{taken} is set in your environment"),
    )
    return next((reason for about, holds, reason in obstacles if about == knob and holds), "")


def plans_under(names: Collection[str], detection: Detection) -> Sequence[Plan]:
    """Return the plans that exist under the knobs of these names."""
    return OrtDetection.of(detection).layer_plans if LAYER_BOUNDARIES.name in names else detection.plans
