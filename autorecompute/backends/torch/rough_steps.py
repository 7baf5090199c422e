"""What steps take, as far as one forward pass tells: where none could be run on fake tensors.

A probe has seen what every unit saves for the backward pass, and what a choice saves of that. What else a step holds is
left to be learnt from real steps.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from autorecompute.backends.torch.extra import OptionStep, Part, Steps
from autorecompute.backends.torch.live import BACKWARD, FORWARD
from autorecompute.backends.torch.options import CHECKPOINT, DROP, KEEP_MATMUL
from autorecompute.backends.torch.space import offered
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autorecompute.backends.torch.detection import Detected
    from autorecompute.backends.torch.switchboard import Site, Switchboard

SAVED = {CHECKPOINT: 1.0, DROP: 1.0, KEEP_MATMUL: 0.25}
"""Of what a site saves, an option saves at least this share."""

WORK = {CHECKPOINT: 1 / 3, DROP: 0.05, KEEP_MATMUL: 0.1}
"""What is computed once more where all that is saved is made again, as a share of a step."""


def rough_steps(found: Detected, board: Switchboard) -> Steps | None:
    """Return a step without recompute, and how it differs with each choice; ``None`` where a probe has seen no unit.

    Args:
        found: What a probe found in the model.
        board: Its switches.
    """
    if not found.calls:
        return None
    choices = [Choice(site.name, option) for site in offered(found) for option in site.options if option in SAVED]
    return Steps(
        batch=found.batch,
        parts=tuple(_parts(found)),
        options=tuple(_option(choice, board.sites[choice.site], found) for choice in choices),
        later_bytes=0,
        has_own_loss=False,
    )


def _parts(found: Detected) -> list[Part]:
    """Return the forward passes of all units and of the head, and their backward passes in the other order."""
    units, owners = [*found.calls, ""], [*map(found.structure.units.index, found.calls), _last(found)]
    told = [
        (unit, owner, found.unit_bytes.get(unit, 0) // max(1, found.calls.count(unit)))
        for unit, owner in zip(units, owners, strict=True)
    ]
    forward = [Part(phase=FORWARD, name=unit, owner=owner, change=size, highest=size) for unit, owner, size in told]
    backward = [Part(phase=BACKWARD, name=unit, owner=owner, change=-size, highest=0) for unit, owner, size in told]
    return [*forward, *reversed(backward)]


def _last(found: Detected) -> int:
    return found.structure.units.index(found.calls[-1])


def _option(choice: Choice, site: Site, found: Detected) -> OptionStep:
    whole = found.savings[site.name].at(found.batch)
    size = max(0.0, whole) * SAVED[choice.option] / len(site.occurrences)
    forward: dict[int, int] = collections.defaultdict(int)
    for path in site.occurrences:
        places = _places(path, found)
        for place in places:
            forward[place] += round(size / len(places))
    last = 2 * len(found.calls) + 1
    parts = [*forward, *(last - place for place in forward)]
    saved = list(forward.values())
    total = sum(found.unit_bytes.values())
    return OptionStep(
        site=choice.site,
        option=choice.option,
        units=tuple(found.structure.units_with(path) for path in site.occurrences),
        parts=tuple(parts),
        change=(*(-one for one in saved), *saved),
        highest=(*(0 for _ in saved), *saved),
        work=WORK[choice.option] * min(whole / total, 1.0) if total and whole > 0 else 0.0,
    )


def _places(path: str, found: Detected) -> Sequence[int]:
    """Return the parts of the forward pass in which a module is: its unit's calls, or else the head."""
    unit = found.structure.unit_of(path)
    return [place for place, call in enumerate(found.calls) if call == unit] or [len(found.calls)]
