"""NVML: which card a process uses, and the card's figures."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autorecompute.errors import SetupError
from autorecompute.units import GIB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator


class NvmlError(SetupError):
    """NVML gave no answer: ``found`` says why, without a full stop, and ``remedy`` what helps, if anything does."""

    def __init__(self, found: str, remedy: str = "") -> None:
        super().__init__(f"{found}. {remedy}".strip())
        self.found, self.remedy = found, remedy


class NvmlUnsupportedError(NvmlError):
    """This one question has no answer here; others may have one."""


_GIVE_TO_CONTAINER = "A container needs: docker run --gpus all"
_INSTALL_DRIVER = f"Install the NVIDIA driver on the host. {_GIVE_TO_CONTAINER}"

_FAULTS = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": ("no NVIDIA driver is installed", _INSTALL_DRIVER),
    "NVML_ERROR_DRIVER_NOT_LOADED": ("the NVIDIA driver is not loaded", _INSTALL_DRIVER),
    "NVML_ERROR_GPU_NOT_FOUND": ("the NVIDIA driver finds no card", _GIVE_TO_CONTAINER),
    "NVML_ERROR_OPERATING_SYSTEM": ("the system keeps this process from the NVIDIA driver", _GIVE_TO_CONTAINER),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the NVIDIA driver's library and its kernel module are of different versions",
        "Restart the machine, or the container if the host's driver was updated.",
    ),
    "NVML_ERROR_GPU_IS_LOST": (
        "the card has fallen off the bus",
        "Look for its Xid error with: sudo dmesg | grep Xid; then restart the machine.",
    ),
    "NVML_ERROR_RESET_REQUIRED": ("the card needs a reset", "Ask the machine's administrator."),
}
"""Codes, by pynvml's names, after which no figure of the card, or of any, can be had. What is in neither table is an
:class:`NvmlError` in NVML's own words."""

_UNSUPPORTED = {
    "NVML_ERROR_NOT_FOUND": "no such card is visible here",
    "NVML_ERROR_NOT_SUPPORTED": "the card does not keep this figure",
    "NVML_ERROR_INVALID_ARGUMENT": "this cannot be asked of such a device",
    "NVML_ERROR_NO_PERMISSION": "this figure is for administrators only",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the NVIDIA driver is too old to know this figure",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH": "the NVIDIA driver is too old to be asked this",
}


def ask(function: str, *arguments: Any) -> Any:
    """Return the answer of one of pynvml's functions, the first of which is ``nvmlInit``.

    Raises:
        NvmlError: there is none; an ``NvmlUnsupportedError`` where that is so of this question alone.
    """
    try:
        import pynvml
    except ImportError as error:
        raise NvmlError("nvidia-ml-py is not installed", "Run: python -m pip install nvidia-ml-py") from error
    question = getattr(pynvml, function, None)
    if question is None:
        raise NvmlUnsupportedError(f"the installed nvidia-ml-py does not know {function}")
    try:
        return question(*arguments)
    except pynvml.NVMLError as error:
        name = next((one for one in (*_FAULTS, *_UNSUPPORTED) if error.value == getattr(pynvml, one, None)), "")
        if name in _UNSUPPORTED:
            raise NvmlUnsupportedError(_UNSUPPORTED[name]) from error
        raise NvmlError(*_FAULTS.get(name, (f"NVML answers: {error}",))) from error
    except pynvml.NVMLLibraryMismatchError as error:
        raise NvmlUnsupportedError("the NVIDIA driver is too old for the installed nvidia-ml-py") from error


CONTEXT_BYTES = GIB  # of a process beside its allocator: the CUDA context, and kernels of cuBLAS and cuDNN

CLOCK_EVENTS = {
    0x004: "power cap",  # SwPowerCap
    0x008: "hardware slowdown",  # HwSlowdown, beside one of the two Hw reasons below where the cause is known
    0x010: "sync boost",  # SyncBoost: held to the clocks of another card
    0x020: "thermal slowdown",  # SwThermalSlowdown
    0x040: "hardware thermal slowdown",  # HwThermalSlowdown
    0x080: "power brake",  # HwPowerBrakeSlowdown: the power supply asks for less
}
"""NVML's bits for what holds the clocks down. An idle card and clocks that an administrator fixed are not among them:
the first says nothing about the steps, the second holds for all of them alike."""

_MEMORY_V2 = 0x02000028  # pynvml's nvmlMemory_v2: the size of the answer and the second version of its form
# One question under two names: drivers before 535 know the second only, and CUDA 14 is to drop it.
_CLOCK_QUESTIONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card or a MIG instance, the same one where the UUID is. A question without an answer raises an ``NvmlError``.

    Of an instance, ``whole`` is the handle of the physical card, and ``handle`` its own.
    """

    handle: Any = field(compare=False, repr=False)
    whole: Any = field(compare=False, repr=False)
    uuid: str
    name: str

    @property
    def is_instance(self) -> bool:
        """Tell whether it is a MIG instance."""
        return self.uuid.startswith("MIG-")

    def memory_bytes(self, kind: str) -> int:
        """Return the ``total`` of its memory, the ``used`` one or the ``free`` one, as the driver counts now.

        Contexts of processes are used. Drivers before 510 count in what they keep for themselves.
        """
        try:
            figures = ask("nvmlDeviceGetMemoryInfo", self.handle, _MEMORY_V2)
        except NvmlUnsupportedError:
            figures = ask("nvmlDeviceGetMemoryInfo", self.handle)
        return int(getattr(figures, kind))

    def clock_events(self) -> tuple[str, ...]:
        """Return the causes that hold the clocks down now, in words; a MIG instance shares them with its card."""
        newer, older = _CLOCK_QUESTIONS
        try:
            reasons = int(ask(newer, self.whole))
        except NvmlUnsupportedError:
            reasons = int(ask(older, self.whole))
        return tuple(words for bit, words in CLOCK_EVENTS.items() if reasons & bit)

    def processes(self) -> dict[int, int | None]:
        """Return the bytes of each process on it, ``None`` where the driver does not tell; the ids are the host's."""
        found: dict[int, int | None] = {}
        for kind in ("Compute", "Graphics"):
            for process in ask(f"nvmlDeviceGet{kind}RunningProcesses", self.handle):
                # A process of both kinds is listed twice with the same figure.
                found[process.pid] = process.usedGpuMemory
        return found

    def neighbours(self, pid: int, held_bytes: int) -> tuple[int, bool]:
        """Return the bytes of other processes, and whether NVML counted them process by process.

        A container has process ids of its own, and NVML tells the host's or none at all. So the list is believed where
        this process stands in it; otherwise all memory that this process does not account for is taken for others',
        less :data:`CONTEXT_BYTES`.
        """
        try:
            processes = self.processes()
        except NvmlUnsupportedError:
            processes = {}
        figures = [used for each, used in processes.items() if each != pid]
        counted = [used for used in figures if used is not None]
        if pid in processes and len(counted) == len(figures):
            return sum(counted), True
        return max(self.memory_bytes("used") - held_bytes - CONTEXT_BYTES, 0), False


VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WHOLE = "nvmlDeviceGetDeviceHandleFromMigDeviceHandle"


def all_cards() -> list[Card]:
    """Return the physical cards that the driver shows here, in its order, which is that of the PCI bus."""
    ask("nvmlInit")
    handles = _handles(ask("nvmlDeviceGetCount"), "nvmlDeviceGetHandleByIndex")
    return [_card(handle, whole=handle) for handle in handles]


def instances(card: Card) -> list[Card]:
    """Return the MIG instances of a card; empty where MIG is off, or on with none created."""
    try:
        is_divided = not card.is_instance and ask("nvmlDeviceGetMigMode", card.handle)[0]
    except NvmlUnsupportedError:
        is_divided = False
    most = ask("nvmlDeviceGetMaxMigDeviceCount", card.handle) if is_divided else 0
    handles = _handles(most, "nvmlDeviceGetMigDeviceHandleByIndex", card.handle)
    return [_card(handle, whole=card.handle) for handle in handles]


def _handles(count: int, question: str, *of: Any) -> Iterator[Any]:
    for index in range(count):
        # A card that this process has no right to, and that CUDA does not count either, has none, and so has a place
        # for an instance that was not created.
        with suppress(NvmlUnsupportedError):
            yield ask(question, *of, index)


def visible_cards(value: str | None) -> list[Card]:
    """Return the cards that a CUDA process sees under a value of ``CUDA_VISIBLE_DEVICES``, in its order.

    The list holds indices, UUIDs or their unique beginnings, and ends before the first entry that names no card; an
    entry that is there twice hides all. A card in MIG mode stands for its first instance, and one instance is all that
    a process sees. An index means NVML's order, which is CUDA's too where all cards are of one kind or
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set: what must be right goes by :func:`find_card`.
    """
    cards = all_cards()
    entries = map(str, range(len(cards))) if value is None else value.split(",")
    found: list[Card] = []
    for entry in entries:
        card = _named(entry.strip(), cards)
        if card is None:
            break
        if card in found:
            return []
        if card.is_instance:
            return [card]
        found.append(card)
    return found


def find_card(uuid: str) -> Card:
    """Return the card or MIG instance with this UUID, as torch gives it without a prefix, or as NVML does.

    CUDA may give the UUID of the whole card to a process that has only a MIG instance of it. Then the instance is the
    one that ``CUDA_VISIBLE_DEVICES`` names, or the first.

    Raises:
        NvmlError: no card of this UUID is visible.
    """
    ask("nvmlInit")
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        try:
            handle = ask("nvmlDeviceGetHandleByUUID", name)
        except NvmlUnsupportedError:
            continue
        card = _card(handle, whole=ask(_WHOLE, handle) if name.startswith("MIG-") else handle)
        own = instances(card)
        visible = visible_cards(os.environ.get(VISIBLE_VARIABLE)) if own else []
        return next((part for part in own if part in visible), own[0] if own else card)
    raise NvmlError(f"NVML knows no card {uuid}", "See those it knows with: nvidia-smi -L")


def describe_visible() -> str:
    """Return the driver and the cards that a CUDA process started here sees, in words."""
    value = os.environ.get(VISIBLE_VARIABLE)
    names = [f"{card.name} ({format_bytes(card.memory_bytes('total'))})" for card in visible_cards(value)]
    hidden = f"none: {VISIBLE_VARIABLE}={value} hides all {len(all_cards())}" if value is not None else "none"
    return f"driver {ask('nvmlSystemGetDriverVersion')}, GPUs seen: {', '.join(names) or hidden}"


def _named(entry: str, cards: list[Card]) -> Card | None:
    if entry.startswith("MIG-"):
        return _unique(entry, [part for card in cards for part in instances(card)])
    if entry.startswith("GPU-"):
        card = _unique(entry, cards)
    else:
        card = cards[int(entry)] if entry.isdecimal() and int(entry) < len(cards) else None
    return next(iter(instances(card)), card) if card is not None else None


def _unique(beginning: str, cards: list[Card]) -> Card | None:
    matching = [card for card in cards if card.uuid.startswith(beginning)]
    return matching[0] if len(matching) == 1 else None


def _card(handle: Any, *, whole: Any) -> Card:
    return Card(
        handle=handle,
        whole=whole,
        uuid=str(ask("nvmlDeviceGetUUID", handle)),
        name=str(ask("nvmlDeviceGetName", handle)),
    )
