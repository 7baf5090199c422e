"""Which card is meant: by torch's UUID, or by ``CUDA_VISIBLE_DEVICES``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from autorecompute.meters.card import Card
from autorecompute.meters.nvml import NvmlCardError, NvmlUnsupportedError
from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from autorecompute.meters.nvml import Nvml

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"


def all_cards(nvml: Nvml) -> list[Card]:
    """Return the physical cards that the driver shows here, in its order, which is that of the PCI bus."""
    found = []
    for index in range(nvml.ask("nvmlDeviceGetCount")):
        try:
            handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        except NvmlUnsupportedError:
            # A card of the machine that this process has no right to: CUDA does not count it either.
            continue
        found.append(_card(nvml, handle, whole=handle))
    return found


def instances(card: Card) -> list[Card]:
    """Return the MIG instances of a card; empty where MIG is off, or on with none created."""
    if not _is_divided(card):
        return []
    found = []
    for index in range(card.nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card.handle)):
        try:
            handle = card.nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card.handle, index)
        except (NvmlCardError, NvmlUnsupportedError):
            # A place for an instance that was not created.
            continue
        found.append(_card(card.nvml, handle, whole=card.handle))
    return found


def visible_cards(nvml: Nvml, value: str | None) -> list[Card]:
    """Return the cards that a CUDA process sees, in its order.

    The list holds indices, UUIDs or their unique beginnings, and ends before the first entry that names no card; an
    entry that is there twice hides all. A card in MIG mode stands for its first instance, and one instance is all that
    a process sees. An index means NVML's order, which is CUDA's too where all cards are of one kind or
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID`` is set: what must be right goes by :func:`find_card`.

    Args:
        nvml: Where to ask.
        value: Of ``CUDA_VISIBLE_DEVICES``; ``None`` where it is not set.
    """
    cards = all_cards(nvml)
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


def find_card(nvml: Nvml, uuid: str) -> Card:
    """Return the card or MIG instance with this UUID.

    CUDA may give the UUID of the whole card to a process that has only a MIG instance of it. Then the instance is the
    one that ``CUDA_VISIBLE_DEVICES`` names, or the first.

    Args:
        nvml: Where to ask.
        uuid: As torch gives it, without what NVML puts in front, or as NVML does.

    Raises:
        NvmlCardError: no card of this UUID is visible.
    """
    names = [uuid] if uuid.startswith(("GPU-", "MIG-")) else [f"GPU-{uuid}", f"MIG-{uuid}"]
    for name in names:
        try:
            handle = nvml.ask("nvmlDeviceGetHandleByUUID", name)
        except (NvmlCardError, NvmlUnsupportedError):
            continue
        card = _card(nvml, handle, whole=_whole(nvml, handle) if name.startswith("MIG-") else handle)
        return _visible_part(card)
    raise NvmlCardError(f"NVML knows no card {uuid}", "See those it knows with: nvidia-smi -L")


def describe_visible(nvml: Nvml) -> str:
    """Return the driver and the cards that a CUDA process started here sees, in words."""
    value = os.environ.get(VISIBLE_VARIABLE)
    names = [f"{card.name} ({format_bytes(card.memory().total_bytes)})" for card in visible_cards(nvml, value)]
    hidden = f"none: {VISIBLE_VARIABLE}={value} hides all {len(all_cards(nvml))}" if value is not None else "none"
    return f"driver {nvml.driver_version}, GPUs seen: {', '.join(names) or hidden}"


def _visible_part(card: Card) -> Card:
    own = instances(card)
    visible = visible_cards(card.nvml, os.environ.get(VISIBLE_VARIABLE)) if own else []
    return next((part for part in own if part in visible), own[0] if own else card)


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


def _is_divided(card: Card) -> bool:
    if card.is_instance:
        return False
    try:
        current, _ = card.nvml.ask("nvmlDeviceGetMigMode", card.handle)
    except NvmlUnsupportedError:
        return False
    return bool(current)


def _whole(nvml: Nvml, handle: Any) -> Any:
    return nvml.ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)


def _card(nvml: Nvml, handle: Any, *, whole: Any) -> Card:
    return Card(
        nvml=nvml,
        handle=handle,
        whole=whole,
        uuid=str(nvml.ask("nvmlDeviceGetUUID", handle)),
        name=str(nvml.ask("nvmlDeviceGetName", handle)),
    )
