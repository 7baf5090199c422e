"""A step put together from parts, as a timeline to look at: what each block keeps, and what its passes take."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autorecompute.memory.step import HEAD, OPTIMIZER, Operation, Phase, StepProfile, Tensor
from autorecompute.memory.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.backends.torch.extra import Part


class _Piece(NamedTuple):
    """Bytes that are alive from one part to another, and what they are for where it is not what the first part is."""

    name: str
    first: int
    last: int
    size: int
    phase: Phase | None = None


FORWARD, BACKWARD = "forward", "backward"


def draw(
    parts: Sequence[Part], change: np.ndarray, alive: np.ndarray, again: Collection[int], dims: Mapping[str, int]
) -> Timeline:
    """Return the timeline of a step.

    Args:
        parts: Its parts, in order.
        change: By how much each changes the bytes that are alive.
        alive: The most bytes that are alive in each, above those before the step.
        again: The units in which something is made again.
        dims: The dimensions of the step.
    """
    parts, change, alive = _whole(parts, change, alive)
    kept = _in_time(_kept(parts, change), alive)
    passing = [
        _Piece(
            f"while it runs: {_name(part)} ({part.phase})",
            place,
            place,
            round(float(alive[place])) - _held(kept, place),
        )
        for place, part in enumerate(parts)
    ]
    pieces = [piece for piece in (*kept, *passing) if piece.size > 0]
    tensors = tuple(
        Tensor(name=name, shape=(str(size),), element_bytes=1, first=first, last=last, phase=phase)
        for name, first, last, size, phase in pieces
    )
    operations = tuple(
        Operation(
            name=f"{place}/{_name(part)}", operator=_name(part), phase=_phase(part, parts, place, again), seconds=0.0
        )
        for place, part in enumerate(parts)
    )
    backward = next((place for place, part in enumerate(parts) if part.phase != FORWARD), len(parts))
    profile = StepProfile(operations=operations, tensors=tensors, backward=backward, dims=dict(dims), by_module=True)
    sizes = tuple(piece.size for piece in pieces)
    changes = [0] * (len(parts) + 1)
    for piece in pieces:
        changes[piece.first] += piece.size
        changes[piece.last + 1] -= piece.size
    return Timeline(profile=profile, sizes=sizes, live_bytes=tuple(itertools.accumulate(changes[:-1])))


def _whole(parts: Sequence[Part], change: np.ndarray, alive: np.ndarray) -> tuple[list[Part], np.ndarray, np.ndarray]:
    """Return the same with the parts of each backward pass as one."""
    first = [
        place
        for place, part in enumerate(parts)
        if not place or (part.phase, part.name) != (parts[place - 1].phase, parts[place - 1].name)
    ]
    return [parts[place] for place in first], np.add.reduceat(change, first), np.maximum.reduceat(alive, first)


def _in_time(kept: list[_Piece], alive: np.ndarray) -> list[_Piece]:
    """Return the same pieces, none alive in the part that makes or frees it where that holds less than all of them."""
    for place, most in enumerate(alive):
        if _held(kept, place) > most:
            kept = [
                piece._replace(
                    first=piece.first + (piece.first == place < piece.last),
                    last=piece.last - (piece.first < piece.last == place),
                )
                for piece in kept
            ]
    return kept


def _held(kept: Sequence[_Piece], place: int) -> int:
    return sum(piece.size for piece in kept if piece.first <= place <= piece.last)


def _kept(parts: Sequence[Part], change: np.ndarray) -> list[_Piece]:
    """Return what each forward pass leaves for its backward pass, and the gradients that this leaves.

    First and last part.
    """
    last_of = {part.name: place for place, part in enumerate(parts) if part.phase == BACKWARD}
    found: list[_Piece] = []
    pending: dict[str, int] = {}
    for place, part in enumerate(parts):
        size = round(float(change[place]))
        if part.phase == FORWARD:
            pending[part.name] = pending.get(part.name, 0) + size
            if size < 0 and found:  # it lets go of what an earlier part kept
                earlier = found.pop()
                found.append(earlier._replace(size=earlier.size + size))
                continue
            found.append(_Piece(f"kept by {_name(part)}", place, last_of.get(part.name, len(parts) - 1), size))
        elif part.phase == BACKWARD:
            left = size + pending.pop(part.name, 0)
            if place + 1 < len(parts):
                name = f"gradients of {_name(part)}"
                found.append(_Piece(name, place + 1, len(parts) - 1, left, Phase.BACKWARD))
    return found


def _name(part: Part) -> str:
    return part.name or (HEAD if part.phase != "outside" else OPTIMIZER)


def _phase(part: Part, parts: Sequence[Part], place: int, again: Collection[int]) -> Phase:
    if part.phase == FORWARD:
        is_head = not part.name and any(other.name for other in parts[:place])
        return Phase.LOSS if is_head else Phase.FORWARD
    return Phase.RECOMPUTE if part.phase == BACKWARD and part.name and part.owner in again else Phase.BACKWARD
