"""Where the model trains."""

from __future__ import annotations

import os
import platform
from typing import Any

import psutil

from autorecompute.training_job import Device


def describe_device(device: Any) -> Device:
    """Return the ``torch.device`` that the model lies on."""
    if device.type == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        return Device(kind="cuda", name=properties.name, uuid=str(properties.uuid), total_bytes=properties.total_memory)
    name = platform.processor() or platform.machine()
    return Device(
        kind="cpu", name=f"{name}, {len(os.sched_getaffinity(0))} cores", total_bytes=psutil.virtual_memory().total
    )
