"""A drop-in for the module ``pynvml``."""

from __future__ import annotations

import functools
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from unittest import mock

import pynvml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from fake_gpu.fake_card import FakeCard

P = ParamSpec("P")
T = TypeVar("T")

MOST_INSTANCES = 7
"""Places for MIG instances on a card in MIG mode, as on the real ones."""


class _Handle:
    """NVML's handles are pointers: two of the same card are not equal."""

    def __init__(self, card: FakeCard) -> None:
        self.card = card


def _answer(
    function: Callable[Concatenate[FakeNvml, P], T],
) -> Callable[Concatenate[FakeNvml, P], T]:
    @functools.wraps(function)
    def ask(nvml: FakeNvml, /, *args: P.args, **kwargs: P.kwargs) -> T:
        nvml.check(function.__name__)
        return function(nvml, *args, **kwargs)

    return ask


class FakeNvml:
    """Answers as pynvml does, from cards that exist on paper.

    Functions that it does not have raise ``AttributeError``, those that change a card among them. Constants and
    exceptions are pynvml's own.

    Args:
        cards: What the driver shows, in its order.
        driver_version: The driver's version.
        errors: NVML's error code for each function that is to fail, by its name in NVML; may be changed at any time.
    """

    def __init__(
        self, *cards: FakeCard, driver_version: str = "550.54.15", errors: Mapping[str, int] | None = None
    ) -> None:
        self.cards = list(cards)
        self.errors = dict(errors or {})
        self._driver_version = driver_version
        self._is_initialised = False

    @contextmanager
    def installed(self) -> Iterator[FakeNvml]:
        """Makes ``import pynvml`` give this while the context lasts."""
        with mock.patch.dict(sys.modules, {"pynvml": self}):
            yield self

    def __getattr__(self, name: str) -> Any:
        value = getattr(pynvml, name)
        is_function = callable(value) and not isinstance(value, type)
        if is_function:
            raise AttributeError(f"FakeNvml has no {name}")
        return value

    def check(self, function: str) -> None:
        """Raises what the function is to raise."""
        if function in self.errors:
            raise pynvml.NVMLError(self.errors[function])
        if not self._is_initialised and function != "nvmlInit":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    @_answer
    def nvmlInit(self) -> None:
        """Must come first."""
        self._is_initialised = True

    @_answer
    def nvmlSystemGetDriverVersion(self) -> str:
        """As given."""
        return self._driver_version

    @_answer
    def nvmlDeviceGetCount(self) -> int:
        """How many cards there are, MIG instances not counted."""
        return len(self.cards)

    @_answer
    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle:
        """The card at this place."""
        if index >= len(self.cards):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return _Handle(self.cards[index])

    @_answer
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> _Handle:
        """The card or MIG instance of this UUID."""
        for card in (each for whole in self.cards for each in (whole, *whole.instances)):
            if card.uuid == uuid:
                return _Handle(card)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    @_answer
    def nvmlDeviceGetUUID(self, handle: _Handle) -> str:
        """With its prefix."""
        return handle.card.uuid

    @_answer
    def nvmlDeviceGetName(self, handle: _Handle) -> str:
        """The product's name."""
        return handle.card.name

    def nvmlDeviceGetMemoryInfo(self, handle: _Handle, version: int | None = None) -> SimpleNamespace:
        """The first version counts what the driver keeps as used; the second tells it apart."""
        self.check("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
        card = handle.card
        figures = {"total": card.total_bytes, "free": card.free_bytes}
        if version:
            return SimpleNamespace(**figures, used=card.used_bytes, reserved=card.driver_bytes)
        return SimpleNamespace(**figures, used=card.used_bytes + card.driver_bytes)

    @_answer
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: _Handle) -> int:
        """Not known of a MIG instance."""
        if handle.card.uuid.startswith("MIG-"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.card.clock_reasons

    @_answer
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: _Handle) -> int:
        """The same under its old name."""
        return handle.card.clock_reasons

    @_answer
    def nvmlDeviceGetComputeRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        """All processes that are listed."""
        return [_process(handle.card, pid) for pid in handle.card.processes]

    @_answer
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        """Those that use the card for graphics too."""
        return [_process(handle.card, pid) for pid in handle.card.graphics]

    @_answer
    def nvmlDeviceGetMigMode(self, device: _Handle) -> list[int]:
        """Now, and after the next reset."""
        if device.card.is_divided is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(device.card.is_divided)] * 2

    @_answer
    def nvmlDeviceGetMaxMigDeviceCount(self, device: _Handle) -> int:
        """Places for instances, created or not."""
        return MOST_INSTANCES if device.card.is_divided is not None else 0

    @_answer
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: _Handle, index: int) -> _Handle:
        """The instance at this place, if there is one."""
        if index >= len(device.card.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _Handle(device.card.instances[index])

    @_answer
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice: _Handle) -> _Handle:
        """The card that the instance is a part of."""
        return _Handle(next(card for card in self.cards if migDevice.card in card.instances))


def _process(card: FakeCard, pid: int) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=card.processes[pid])
