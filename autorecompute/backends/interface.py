"""Interfaces of a training system: its worker's half, its controller's half, and the listener."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import MemoryModel, PeakForecaster, StepProfile, StepProfiles
    from autorecompute.plans import Config, Offer, Plan, Space
    from autorecompute.training_job import Detection


class Listener(Protocol):
    """Who is told what happens in the training process."""

    @property
    def target_batch(self) -> int | None:
        """Sample that a forward is to receive; ``None`` for as many as the script gives."""

    @property
    def fake_card(self) -> str | None:
        """Return the card that tensors without data stand for, empty for the CPU; ``None`` where tensors have data."""

    @property
    def fake_ranks(self) -> int:
        """Return as one of how many ranks the script trains on such tensors; 0 for a script as it is."""

    @property
    def replaces_checkpointing(self) -> bool:
        """Tell whether the checkpoints that the script makes itself are to be switched off."""

    @property
    def is_trial(self) -> bool:
        """Tell whether the process is there to be measured: its training leads nowhere."""

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Return a training session exists and no step has run in it; the answer is the config to train with."""

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note that the model is about to be called for training with this many samples.

        Args:
            batch: Samples of the call.
            check: Compares a config's gradients on this very batch with those without recompute, and looks at a whole
                step with it; with ``compares=False`` it does that alone.
        """

    def on_several_models(self) -> None:
        """Note that a second model trains in one step."""

    def on_fault(self, error: Exception) -> None:
        """Note that what follows the script has failed before it could say anything; nothing of the training has."""

    def on_failure(self, error: Exception) -> None:
        """Note that a training call of the model has raised this, and the script is about to get it."""

    def on_fallback(self, message: str) -> None:
        """Note that the model is about to be trained without the training system, for the reason in the sentence."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """Settings that make an unmodified script train with a config.

    Attributes:
        variables: Environment variables to set.
        files: What each file that they name has to hold, by its path.
        notes: What else whoever trains has to know, by what it is about.
    """

    variables: dict[str, str]
    files: dict[Path, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportHook:
    """A function of the backend that a process calls by itself when it imports a module.

    Attributes:
        module: The module whose import calls the function.
        comes_first: Whether the function is called before the module runs, rather than when it has been imported.
        function: The function, as ``package.module:function``; it takes no arguments.
        missed: What happens in a process that cannot call it, in words.
    """

    module: str
    comes_first: bool
    function: str
    missed: str


class ControllerBackend(Protocol):
    """A training system as the controller sees it: a module that imports no part of the system."""

    NAME: str
    """Its name on the command line."""

    VARIABLES: tuple[str, ...]
    """All environment variables that decide about recompute."""

    USED_BY: str
    """The module by whose import a script tells that it uses the system; empty for the one that trains all others."""

    PROFILES: bool
    """Tells whether single steps can be profiled; a system that cannot tells of memory by :meth:`memory_of`."""

    TRIAL_VARIABLES: Mapping[str, str]
    """Variables of trials."""

    CACHE_VARIABLES: tuple[str, ...]
    """Those that name the folder in which it keeps what it has compiled."""

    LOG_VARIABLE: str
    """The variable that says how much the system logs; empty where it has none."""

    CARDS: Sequence[str]
    """Cards whose kernels and allocator fake tensors can have."""

    READ_BY: str
    """Scripts in which the variables have an effect without ``run``: ``a script that ...``."""

    KNOBS: Sequence[Knob]
    """Knobs that ``tune --knobs`` tries, in this order."""

    HINTS: Sequence[Knob]
    """Knobs that users may try themselves."""

    DIAGNOSIS: str
    """A module that prints what is installed, as JSON, when it is run in a process of its own."""

    REPAIR: str
    """A module that builds what can be built here, when it is run; empty where there is nothing to build."""

    def import_hooks(self) -> Sequence[ImportHook]:
        """Return the import hooks of a process that trains with an emission."""

    def render(
        self, config: Config, *, knobs: Collection[str] = (), versions: Mapping[str, str], folder: Path
    ) -> Emission:
        """Render the config and the knobs of these names.

        Args:
            config: What to recompute.
            knobs: Names among ``KNOBS``.
            versions: Versions of what trains, as a detection has them.
            folder: Where files lie that the variables name.

        Raises:
            SetupError: these versions read no config of this form.
            UsageError: the config cannot be written for them, or there is no knob of one of these names.
        """

    def script(self, config: Config, versions: Mapping[str, str]) -> str:
        """Source of a file whose ``apply_recompute(model)`` switches the config on in a script without this package.

        Raises:
            UsageError: there is no such form for the config.
        """

    def unmeasured(self, config: Config, versions: Mapping[str, str]) -> str:
        """Return a file that switches on a config which nobody measured, with that word in it.

        Raises:
            UsageError: the training system reads no file.
        """

    def planned(self, environment: Mapping[str, str]) -> Config | None:
        """Return the unmeasured config that these variables switch on; ``None`` where they switch on none.

        Raises:
            UsageError: they name a file that cannot be read.
        """

    def offer(self, detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
        """Return the offer at these dimensions, and the plans that these variables switch on.

        Raises:
            UsageError: they hold what the training system cannot read.
        """

    def takes_turns(self, detection: Detection) -> bool:
        """Tell whether a swap takes no time beside a step, so that configs can be timed in turns, a step of each."""

    def needs_of(self, detection: Detection) -> Callable[[Config], frozenset[str]]:
        """Tell the names of what takes time to make before a config trains, and is made once for all that need it."""

    def memory_of(self, detection: Detection) -> MemoryModel | None:
        """Return a memory model of every config from a detection alone; ``None`` where it tells nothing."""

    def peaks_of(self, detection: Detection) -> PeakForecaster | None:
        """Return peaks to begin a search with, where nothing is a model of all memory; ``None`` if nothing is known."""

    def rough_memory_of(self, detection: Detection) -> MemoryModel | None:
        """Return the same, roughly, where :meth:`memory_of` tells nothing.

        Real steps under safe configs tell the rest.
        """

    def why_not_while_training(self, detection: Detection) -> str:
        """Return why no config may be tried in the steps of a training, and a way out; empty if it may."""

    def memory_model(self, space: Space, small: StepProfiles) -> MemoryModel | None:
        """Return a memory model from these profiled steps; ``None`` of a system that profiles no steps."""

    def why_not(self, knob: Knob, config: Config, detection: Detection, inherited: Mapping[str, str]) -> str:
        """Return why a knob cannot be tried on a config, in words; empty where it can.

        Args:
            knob: One of those that are tried.
            config: What is recomputed.
            detection: What is trained, where and with which versions.
            inherited: The environment that the script starts from.
        """

    def plans_under(self, names: Collection[str], detection: Detection) -> Sequence[Plan]:
        """Return the plans that exist under the knobs of these names.

        Args:
            names: What is on.
            detection: What a worker detected under their variables.
        """


class LiveMeter(Protocol):
    """Counts the bytes of the tensors that are alive, through one step."""

    def start(self) -> None:
        """Begin a step, which takes longer than others from now on."""

    def stop(self) -> int:
        """Return the step has ended; the most bytes that it had alive beyond those alive at its start."""

    def held_bytes(self, measured_bytes: int) -> int:
        """Return the bytes that a process with this config alone would hold between two steps."""


class WorkerBackend(Protocol):
    """A training system inside the user's process."""

    def install(self, listener: Listener) -> None:
        """Hook into the training system before the user's script runs.

        Raises:
            SetupError: the system is not installed, or a part of it is missing.
        """

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Train with another config from the next step on, between two steps; profile them until the next switch."""

    def live_meter(self) -> LiveMeter | None:
        """Return a meter of live tensors; ``None`` where the device's allocator, or nobody, counts them."""

    def take_profile(self) -> StepProfile | None:
        """Return the last step of those  profiled, once after a switch; ``None`` of a system that profiles none."""

    def take_compile_seconds(self) -> float:
        """Seconds since the last call in which the model was compiled; steps of that time tell nothing of a config."""

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a training forward waits for its backward; no config can be switched then."""

    def end_step(self) -> tuple[str, ...]:
        """Told that a step has ended; what the script has done so far that recompute does not bear."""

    def wrong_recompute(self) -> str:
        """Return in what the steps with this config differed from those without recompute; empty where in nothing."""

    def why_nothing_trained(self) -> str:
        """Return why a script that ends or goes on may never have come to training, and what to do, in sentences."""

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """Classify the exception that ended the script, with a sentence about it."""


class JoiningBackend(WorkerBackend, Protocol):
    """One that can join a training that goes on, and leave it."""

    def note(self, optimizer: Any) -> None:
        """Told of an optimizer that was made before."""

    def uninstall(self) -> None:
        """Follow nothing any more."""
