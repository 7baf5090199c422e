"""Memory as the process, the CUDA allocator and the driver see it. Knows nothing of plans."""

from __future__ import annotations

from autorecompute.meters.cuda import CudaMeter
from autorecompute.meters.host import HostMeter

__all__ = ["Meter", "kind_in_use", "meter_for"]

Meter = HostMeter | CudaMeter
"""Watches the memory of the process it runs in."""


def meter_for(device_kind: str) -> Meter:
    """Return the meter of a device of this kind, ``cpu`` or ``cuda``."""
    return CudaMeter() if device_kind == "cuda" else HostMeter()


def kind_in_use() -> str:
    """Return the kind of device on which a script trains: one on the CPU leaves a card alone, though it may see one."""
    import torch

    return "cuda" if torch.cuda.is_initialized() else "cpu"
