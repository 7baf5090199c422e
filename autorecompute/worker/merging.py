"""Several ranks that train together, told as one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.training_job import Detection
from autorecompute.worker.protocol import Failed, Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

T = TypeVar("T", int, float)


def merge(messages: Mapping[int, Message]) -> Message:
    """Return what all ranks said, in one message.

    The peak is the worst rank's, a step takes as long as on its slowest rank, and samples add up. Ranks that disagree
    on what they train, or on whether they could measure, fail together.

    Args:
        messages: What each rank said, by its number; all of them detections, or all of them measurements.
    """
    said = [messages[rank] for rank in sorted(messages)]
    if len(said) == 1:
        return said[0]
    detections = [message for message in said if isinstance(message, Detection)]
    measurements = [message for message in said if isinstance(message, Measurement)]
    checks = [message for message in said if isinstance(message, GradientCheck)]
    if len(detections) == len(said):
        return _merge_detections(detections)
    if len(measurements) == len(said):
        return _merge_measurements(measurements)
    if len(checks) == len(said):
        worst = min(checks, key=lambda check: (check.agrees, -check.worst))
        return replace(worst, step_bytes=_worst(check.step_bytes for check in checks))
    kinds = ", ".join(f"rank {rank}: {type(messages[rank]).__name__}" for rank in sorted(messages))
    return Failed(outcome=Outcome.SCRIPT_ERROR, message=f"the ranks are not at the same point ({kinds})")


def _merge_detections(detections: Sequence[Detection]) -> Message:
    first = detections[0]
    if len({detection.graph for detection in detections}) > 1:
        return Failed(outcome=Outcome.SCRIPT_ERROR, message=_explain_difference(detections))
    return replace(
        first,
        resting_bytes=max(detection.resting_bytes for detection in detections),
        outside_bytes=_worst(detection.outside_bytes for detection in detections),
    )


def _explain_difference(detections: Sequence[Detection]) -> str:
    if any(detection.dims != detections[0].dims for detection in detections):
        sizes = "; ".join(
            f"rank {rank}: {', '.join(f'{name} {size}' for name, size in detection.dims.items())}"
            for rank, detection in enumerate(detections)
        )
        return f"the ranks begin with batches of different sizes ({sizes}); pad all texts to one length while tuning"
    return "the ranks train different graphs; tune one of them alone"


def _merge_measurements(measurements: Sequence[Measurement]) -> Measurement:
    first = measurements[0]
    for rank, measurement in enumerate(measurements):
        if measurement.outcome is not Outcome.OK:
            return replace(measurement, message=f"rank {rank}: {measurement.message}")
    return replace(
        first,
        peak_bytes=_worst(measurement.peak_bytes for measurement in measurements),
        held_bytes=_worst(measurement.held_bytes for measurement in measurements),
        allocated_bytes=_worst(measurement.allocated_bytes for measurement in measurements),
        resident_bytes=_worst(measurement.resident_bytes for measurement in measurements),
        device_bytes=_worst(measurement.device_bytes for measurement in measurements),
        step_seconds=tuple(map(max, zip(*(measurement.step_seconds for measurement in measurements), strict=False))),
        cpu_seconds=tuple(map(max, zip(*(measurement.cpu_seconds for measurement in measurements), strict=False))),
        others_share=_worst(measurement.others_share for measurement in measurements),
        warmup_seconds=max(measurement.warmup_seconds for measurement in measurements),
        compile_seconds=max(measurement.compile_seconds for measurement in measurements),
        samples=sum(measurement.samples or 0 for measurement in measurements),
        retries=_worst(measurement.retries for measurement in measurements),
        marks=tuple(dict.fromkeys(mark for measurement in measurements for mark in measurement.marks)),
        warnings=tuple(dict.fromkeys(text for measurement in measurements for text in measurement.warnings)),
    )


def _worst(figures: Iterable[T | None]) -> T | None:
    return max((figure for figure in figures if figure is not None), default=None)
