"""Waits for the device that a tuning measures on, and says what for, and what became of it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from autorecompute.errors import TooLittleTimeError
from autorecompute.trials.lock import hold_device
from autorecompute.trials.signals import OutOfTime

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.measurement import Device
    from autorecompute.tuning.settings import Workplace


@contextmanager
def holding(device: Device, place: Workplace) -> Iterator[None]:
    """Holds the device while the context lasts.

    Raises:
        TooLittleTimeError: the time was over before the device was free.
    """
    purpose, is_same = _purpose(place), False

    def tell(text: str) -> None:
        nonlocal is_same
        is_same = place.shared is not None and f"({purpose})" in text
        place.progress.note(f"{text}{', for this same study: it is taken over if that one goes away' * is_same}")

    with ExitStack() as held:
        try:
            held.enter_context(hold_device(device, purpose, tell))
        except OutOfTime:
            raise TooLittleTimeError(_describe_late(is_same=is_same)) from None
        yield


def _purpose(place: Workplace) -> str:
    # Workers that share a study need not share a folder.
    shared = place.shared
    return f"study {place.folder.path}" if shared is None else f"study '{shared.name}' in {shared.place}"


def _describe_late(*, is_same: bool) -> str:
    if is_same:
        return (
            "Timed out: another worker of this study is using this device. The same command gives the answer once that "
            "worker is through. Start one worker for each device."
        )
    return (
        "Timed out: another tuning is using this device. Run the same command once that is through, or give it more "
        "with --timeout."
    )
