"""How long a config is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.worker.protocol import Order

if TYPE_CHECKING:
    from autorecompute.plans import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a config is measured.

    Attributes:
        warmup: Steps before the timed ones; 0 for a config that is timed in turns with others (``interleaving.py``).
        steps: Timed steps.
        profiles: Whether the last step is profiled, which takes time of its own.
        batch: Samples a forward instead of the target batch, on a bench that can change it.
    """

    warmup: int = 2
    steps: int = 5
    profiles: bool = False
    batch: int | None = None

    def order(self, config: Config, target: int | None = None) -> Order:
        """Return what the worker is told, where the target batch is this."""
        batch = self.batch or target
        return Order(config=config, warmup=self.warmup, steps=self.steps, profiles=self.profiles, batch=batch)
