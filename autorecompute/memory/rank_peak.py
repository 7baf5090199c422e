"""What the peak of one rank of several is made of."""

from __future__ import annotations

from dataclasses import dataclass

from autorecompute.plans import Config
from autorecompute.ranges import Bytes, PositiveCount


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPeak:
    """The bytes of tensors on one rank when most are alive.

    Attributes:
        config: What is recomputed.
        ranks: How many ranks train together.
        parameter_bytes: The rank's parameters, or its shards of them, and buffers of the model.
        gradient_bytes: Gradients, before and after they are reduced over ranks.
        state_bytes: The optimizer's state.
        gathered_bytes: Parameters gathered from all ranks, and buffers of collectives.
        activation_bytes: All else: activations, what is made for a moment, and the batch.
    """

    config: Config
    ranks: PositiveCount
    parameter_bytes: Bytes
    gradient_bytes: Bytes
    state_bytes: Bytes
    gathered_bytes: Bytes
    activation_bytes: Bytes

    @property
    def peak_bytes(self) -> int:
        """Return all of it."""
        held = self.parameter_bytes + self.gradient_bytes + self.state_bytes
        return held + self.gathered_bytes + self.activation_bytes
