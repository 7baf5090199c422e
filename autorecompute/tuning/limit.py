"""What the peak may reach where the user gives no limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.units import MIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.measurement import Detection
    from autorecompute.studies import StudyFolder

SHARE = 0.9
"""Of memory that is shared with the whole system, so much may be used."""

STEP_BYTES = 64 * MIB
"""What a kernel keeps for itself differs by less from one start to the next."""

RESERVE_BYTES = 512 * MIB
"""Left free on a card: kernels are loaded at their first call, and cuDNN and NCCL ask the driver, not the allocator."""


def choose_limit(detection: Detection, folder: StudyFolder, on_shortage: Callable[[str], None]) -> int:
    """What is available now, or the limit that the study was begun with.

    What is free on a card changes from one minute to the next. A study that went on under another limit than it began
    with would be another problem.

    Args:
        detection: The device, and what is in use on it.
        folder: The study.
        on_shortage: Called with a sentence where less is free than when the study began.
    """
    available = available_bytes(detection)
    limit = folder.problem().limit_bytes if folder.exists() else available
    if limit >= available + STEP_BYTES:
        on_shortage(f"warning: {format_bytes(limit - available)} less is free than when the study began")
    return limit


def available_bytes(detection: Detection) -> int:
    """What the peak may reach on this device.

    On a card that is its memory, less what lay outside of the allocator when the script had just put its model there
    (the CUDA context, other processes), less :data:`RESERVE_BYTES`, in whole MiB. On a CPU, and on a card that does not
    tell, it is nine tenths of the memory, in steps that a machine's next start does not change.
    """
    total_bytes = detection.device.total_bytes
    if detection.outside_bytes is None:
        return int(total_bytes * SHARE) // STEP_BYTES * STEP_BYTES
    available = max(total_bytes - detection.outside_bytes - RESERVE_BYTES, 0)
    return available // MIB * MIB
