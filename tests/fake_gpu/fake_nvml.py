import functools
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from unittest import mock

import pynvml

from autorecompute.units import GIB, MIB

MOST_INSTANCES = 7  # places for MIG instances on a card in MIG mode, as on the real ones


@dataclass(kw_only=True, eq=False)
class FakeCard:
    """A card, or a MIG instance of one. Everything may be changed while it is in use.

    Attributes:
        uuid: As NVML tells it, ``GPU-…`` or ``MIG-…``.
        name: The product's name.
        total_bytes: Its memory.
        driver_bytes: What the driver keeps for itself: neither used nor free.
        processes: Memory in bytes of each process that NVML lists, by process id; ``None`` where it does not tell.
        unlisted_bytes: Memory of processes that NVML does not list, as for those outside a container.
        graphics: Those of ``processes`` that use the card for graphics too, by process id.
        clock_reasons: NVML's bits for what holds the clocks down.
        instances: Its MIG instances.
        is_divided: Whether MIG is on; ``None`` for a card that does not have it.
    """

    uuid: str = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    name: str = "NVIDIA Paper 40GB"
    total_bytes: int = 40 * GIB
    driver_bytes: int = 512 * MIB
    processes: dict[int, int | None] = field(default_factory=dict)
    unlisted_bytes: int = 0
    graphics: set[int] = field(default_factory=set)
    clock_reasons: int = 0
    instances: list["FakeCard"] = field(default_factory=list)
    is_divided: bool | None = None

    @property
    def used_bytes(self):
        return sum(used or 0 for used in self.processes.values()) + self.unlisted_bytes

    @property
    def free_bytes(self):
        return self.total_bytes - self.driver_bytes - self.used_bytes


class _Handle:
    """NVML's handles are pointers: two of the same card are not equal."""

    def __init__(self, card):
        self.card = card


def _answer(function):
    @functools.wraps(function)
    def ask(nvml, *args, **kwargs):
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

    def __init__(self, *cards, driver_version="550.54.15", errors=None):
        self.cards = list(cards)
        self.errors = dict(errors or {})
        self._driver_version = driver_version
        self._is_initialised = False

    @contextmanager
    def installed(self):
        with mock.patch.dict(sys.modules, {"pynvml": self}):
            yield self

    def __getattr__(self, name):
        value = getattr(pynvml, name)
        is_function = callable(value) and not isinstance(value, type)
        if is_function:
            raise AttributeError(f"FakeNvml has no {name}")
        return value

    def check(self, function):
        if function in self.errors:
            raise pynvml.NVMLError(self.errors[function])
        if not self._is_initialised and function != "nvmlInit":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    @_answer
    def nvmlInit(self):
        self._is_initialised = True

    @_answer
    def nvmlSystemGetDriverVersion(self):
        return self._driver_version

    @_answer
    def nvmlDeviceGetCount(self):
        return len(self.cards)

    @_answer
    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= len(self.cards):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return _Handle(self.cards[index])

    @_answer
    def nvmlDeviceGetHandleByUUID(self, uuid):
        for card in (each for whole in self.cards for each in (whole, *whole.instances)):
            if card.uuid == uuid:
                return _Handle(card)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    @_answer
    def nvmlDeviceGetUUID(self, handle):
        return handle.card.uuid

    @_answer
    def nvmlDeviceGetName(self, handle):
        return handle.card.name

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        """The first version counts what the driver keeps as used; the second tells it apart."""
        self.check("nvmlDeviceGetMemoryInfo_v2" if version else "nvmlDeviceGetMemoryInfo")
        card = handle.card
        figures = {"total": card.total_bytes, "free": card.free_bytes}
        if version:
            return SimpleNamespace(**figures, used=card.used_bytes, reserved=card.driver_bytes)
        return SimpleNamespace(**figures, used=card.used_bytes + card.driver_bytes)

    @_answer
    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        if handle.card.uuid.startswith("MIG-"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.card.clock_reasons

    @_answer
    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return handle.card.clock_reasons

    @_answer
    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [_process(handle.card, pid) for pid in handle.card.processes]

    @_answer
    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        return [_process(handle.card, pid) for pid in handle.card.graphics]

    @_answer
    def nvmlDeviceGetMigMode(self, device):
        if device.card.is_divided is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(device.card.is_divided)] * 2

    @_answer
    def nvmlDeviceGetMaxMigDeviceCount(self, device):
        return MOST_INSTANCES if device.card.is_divided is not None else 0

    @_answer
    def nvmlDeviceGetMigDeviceHandleByIndex(self, device, index):
        if index >= len(device.card.instances):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _Handle(device.card.instances[index])

    @_answer
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, migDevice):
        return _Handle(next(card for card in self.cards if migDevice.card in card.instances))


def _process(card, pid):
    return SimpleNamespace(pid=pid, usedGpuMemory=card.processes[pid])
