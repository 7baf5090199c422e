"""Settings besides recompute that take a restart of the script to change, and what was measured of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import Best


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting as it can be tried here.

    Attributes:
        name: What people call it.
        environment: The variables that turn it.
        effect: What it may change, in words.
        remakes_plans: Whether the training graph, or the way plans are looked for in it, becomes another one: plans are
            then detected again, and gradients compared.
        looks_within_layers: Whether plans are looked for within the boundaries of transformer layers.
        why_not: Why it cannot be tried, in words; empty where it can.
    """

    name: str
    environment: dict[str, str]
    effect: str
    remakes_plans: bool = False
    looks_within_layers: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a fresh process trains with.

    Attributes:
        config: What it recomputes.
        description: The same in a few words.
        knobs: The variables of the knobs that are turned.
    """

    config: Config
    description: str
    knobs: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for setups that train alike."""
        return " ".join([self.config.hash, *(f"{name}={value}" for name, value in sorted(self.knobs.items()))])


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobComparison:
    """Two setups side by side, in alternating fresh processes.

    Attributes:
        knob: What was turned.
        base: Key of the setup without it.
        setup: The setup with it.
        outcome: ``ok``, or why nobody should train with it.
        message: The same in words, or what else there is to say.
        gradients: Its gradients beside those without recompute, where they were compared.
        pairs: The base's process and the other one's, which ran one after the other in either order.
    """

    knob: str
    base: str
    setup: Setup
    outcome: Outcome = Outcome.OK
    message: str = ""
    gradients: GradientCheck | None = None
    pairs: tuple[tuple[Measurement, Measurement], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobStudy:
    """All that a study knows of its knobs.

    Attributes:
        winner: What the search found, before any knob was turned.
        comparisons: What was measured, in order.
        turned: The name of each knob that nothing is left to compare of, with the key of the setup it was turned on.
    """

    winner: Best
    comparisons: tuple[KnobComparison, ...] = ()
    turned: tuple[tuple[str, str], ...] = ()
