"""What a tuning takes of the device: memory up to a limit, and the lock that keeps other tunings away."""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from autorecompute.errors import TooLittleTimeError
from autorecompute.trials.lock import hold_device
from autorecompute.units import MIB, format_bytes, format_seconds
from autorecompute.waiting import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autorecompute.studies import StudyFolder
    from autorecompute.training_job import Detection
    from autorecompute.tuning.context import TuningContext


SHARE = 0.9
"""Of memory that is shared with the whole system, so much may be used."""

STEP_BYTES = 64 * MIB
"""What a kernel keeps for itself differs by less from one start to the next."""

RESERVE_BYTES = 512 * MIB
"""Left free on a card: kernels are loaded at their first call, and cuDNN and NCCL ask the driver, not the allocator."""


def choose_limit(detection: Detection, folder: StudyFolder, on_shortage: Callable[[str], None]) -> int:
    """Return what is available now, or the limit that the study was begun with.

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
    """Return what the peak may reach on this device.

    On a card that is its memory, less what lay outside of the allocator when the script had just put its model there
    (the CUDA context, other processes), less :data:`RESERVE_BYTES`, in whole MiB. On a CPU, and on a card that does not
    tell, it is nine tenths of the memory, in steps that a machine's next start does not change.
    """
    total_bytes = detection.device.total_bytes
    if detection.outside_bytes is None:
        return int(total_bytes * SHARE) // STEP_BYTES * STEP_BYTES
    available = max(total_bytes - detection.outside_bytes - RESERVE_BYTES, 0)
    return available // MIB * MIB


@contextmanager
def device_lock(context: TuningContext) -> Iterator[None]:
    """Hold the device while the context lasts.

    Raises:
        TooLittleTimeError: the time was over before the device was free.
    """
    purpose, is_same = _purpose(context), False
    began_waiting: float | None = None

    def note_wait(text: str) -> None:
        nonlocal is_same, began_waiting
        began_waiting = time.monotonic()
        is_same = context.shared is not None and f"({purpose})" in text
        context.note(f"{text}{', for this same study: it continues if that one exits' * is_same}")

    with ExitStack() as held:
        try:
            held.enter_context(hold_device(context.detection.device, purpose, note_wait))
        except OutOfTime:
            waited_seconds = 0.0 if began_waiting is None else time.monotonic() - began_waiting
            raise TooLittleTimeError(_describe_late(waited_seconds, is_same=is_same)) from None
        if began_waiting is not None:
            context.waited_seconds += time.monotonic() - began_waiting
        yield


def _purpose(context: TuningContext) -> str:
    # Workers that share a study need not share a folder.
    shared = context.shared
    return f"study {context.folder.path}" if shared is None else f"study '{shared.name}' in {shared.place}"


def _describe_late(waited_seconds: float, *, is_same: bool) -> str:
    waited = f"after {format_seconds(waited_seconds)} of waiting for it"
    if is_same:
        return (
            f"Timed out: another worker of this study is using this device, {waited}. The same command gives the "
            "answer once that worker is through. Start one worker for each device."
        )
    return (
        f"Timed out: another tuning is using this device, {waited}. Run the same command once that is "
        "through, or give it more with --timeout."
    )
