"""Why a config saves less than its plans state: recomputed tensors that feed one another have to wait together.

A recomputed operation may read the recomputed inputs of others. Where nothing in between is kept, the first layer that
backward needs makes all layers before it run again, and each then waits for its own backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.memory.step import Operation, Phase

if TYPE_CHECKING:
    from autorecompute.memory.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What is recomputed before a step reaches its peak.

    Attributes:
        operations: What was recomputed up to the peak, in order.
        recomputed: How many operations the whole step recomputes.
        waiting_bytes: Bytes of recomputed tensors that are alive at the peak.
    """

    operations: tuple[Operation, ...]
    recomputed: int
    waiting_bytes: int

    @property
    def share_of_work(self) -> float:
        """Share of the step's recompute that is done before its peak, from 0 to 1."""
        return len(self.operations) / self.recomputed if self.recomputed else 0.0


def find_chain(timeline: Timeline) -> Chain:
    """Return what the step recomputes up to its peak; empty where it recomputes nothing before it."""
    profile = timeline.profile
    recomputed = [
        (position, operation)
        for position, operation in enumerate(profile.operations)
        if operation.phase is Phase.RECOMPUTE
    ]
    waiting = timeline.live_by_phase()[Phase.RECOMPUTE][timeline.peak]
    return Chain(
        operations=tuple(operation for position, operation in recomputed if position <= timeline.peak),
        recomputed=len(recomputed),
        waiting_bytes=waiting,
    )
