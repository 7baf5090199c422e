"""What the compiler of a model can be asked for. Imports no compiler."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.backends.torch.extra import CompiledPeak


@dataclass(frozen=True)
class Offered:
    """What the compiler can be asked for, and what each would keep.

    Attributes:
        options: What makes it keep something else than what is offered before, by site and option: the bytes that it
            keeps less.
        peaks: What it should have alive with each plan, and without any.
    """

    options: dict[tuple[str, str], int] = field(default_factory=dict)
    peaks: tuple[CompiledPeak, ...] = ()

    def of(self, site: str) -> tuple[str, ...]:
        """Return the options of a site."""
        return tuple(option for name, option in self.options if name == site)
