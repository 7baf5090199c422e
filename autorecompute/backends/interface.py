"""What the worker asks of a training system that can recompute activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from autorecompute.measurement import Detection, GradientCheck, Outcome
    from autorecompute.memory import StepProfile
    from autorecompute.plans import Config, Level, Plan, Request


class Listener(Protocol):
    """Who is told what happens in the training process."""

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """A training session exists and no step has run in it; the answer is the config to train with."""
        ...

    def on_forward(self, batch: int, check: Callable[[Config], GradientCheck]) -> None:
        """The model is about to be called for training with this many samples.

        Args:
            batch: Samples of the call.
            check: Compares a config's gradients on this very batch with those without recompute.
        """
        ...

    def on_fallback(self, message: str) -> None:
        """The model is about to be trained without the training system, for the reason that the sentence gives."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """A setting besides recompute that takes a restart of the script to change.

    Attributes:
        name: What people call it.
        variables: The environment variables that turn it on.
        effect: What it may change, in words.
        needs: Where it does anything, in words; empty where it does everywhere.
    """

    name: str
    variables: dict[str, str]
    effect: str
    needs: str = ""


class Emission(Protocol):
    """How a config is switched on from outside the process; a module that imports no part of the training system."""

    MEMORY_VARIABLES: tuple[str, ...]
    """All environment variables that decide about recompute."""

    KNOBS: Sequence[Knob]
    """What ``tune --knobs`` tries, in this order."""

    def environment_for(
        self, config: Config, *, knobs: Collection[str] = (), ort_version: str, plans_file: Path
    ) -> dict[str, str]:
        """The variables that switch the config and the knobs of these names on."""
        ...

    def requested_by(self, environment: Mapping[str, str], *, ort_version: str) -> Request:
        """What the variables ask for.

        Raises:
            UsageError: they hold what that version cannot read.
        """
        ...

    def probe_config_of(self, level: Level, environment: Mapping[str, str]) -> str:
        """How the training system looks for plans under a level and these variables, in its own words."""
        ...

    def plans_file_text(self, config: Config) -> str:
        """What ``plans_file`` has to hold."""
        ...


class Knobs(Protocol):
    """The settings besides recompute; a module like that of an ``Emission``."""

    HINTS: Sequence[Knob]
    """What users may try themselves."""

    def why_not(self, knob: Knob, config: Config, detection: Detection, inherited: Mapping[str, str]) -> str:
        """Why a knob cannot be tried on a config, in words; empty where it can.

        Args:
            knob: One of those that are tried.
            config: What is recomputed.
            detection: What is trained, where and with which versions.
            inherited: The environment that the script starts from.
        """
        ...

    def plans_under(self, names: Collection[str], detection: Detection) -> Sequence[Plan]:
        """The plans that exist under the knobs of these names.

        Args:
            names: What is on.
            detection: What a worker detected under their variables.
        """
        ...


class Backend(Protocol):
    """One training system, inside the user's process."""

    def install(self, listener: Listener) -> None:
        """Hooks into the training system before the user's script runs.

        Raises:
            SetupError: the system is not installed, or a part of it is missing.
        """
        ...

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Trains with another config from the next step on; must come between two steps.

        Args:
            config: What to recompute.
            profiles: Whether the steps to come are profiled, until the next switch.
        """
        ...

    def take_profile(self) -> StepProfile:
        """The last step of those that were profiled; can be asked once after each switch."""
        ...

    @property
    def has_open_forward(self) -> bool:
        """Whether a training forward waits for its backward; no config can be switched then."""
        ...

    def end_step(self) -> tuple[str, ...]:
        """Told that a step has ended; what the script has done so far that recompute does not bear."""
        ...

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """What the exception that ended the script means, and a sentence about it."""
        ...
