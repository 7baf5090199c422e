"""What a compiler can be asked for in one model."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.backends.torch.extra import CompiledPeak


@dataclass(frozen=True)
class Offered:
    """What the compiler can be asked for, and what each would keep.

    Attributes:
        budgets: The budgets that make it keep something else than larger ones, with the bytes that each keeps less.
        clusters: The same of clusters that are made again, by their names.
        peaks: What it should have alive with each plan, and without any.
    """

    budgets: dict[float, int] = field(default_factory=dict)
    clusters: dict[str, int] = field(default_factory=dict)
    peaks: tuple[CompiledPeak, ...] = ()
