"""Interfaces of a training system: its worker's half, its controller's half, and the listener."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autorecompute.plans import Config, Plan
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from autorecompute.measurement import GradientCheck, Outcome
    from autorecompute.memory import MemoryModel, PeakForecaster, StepProfile, StepProfiles
    from autorecompute.plans import Lengths, Offer, Space


class Listener(Protocol):
    """Who is told what happens in the training process."""

    @property
    def target_batch(self) -> int | None:
        """Samples that a forward is to receive; ``None`` for as many as the script gives."""

    fake_card: str | None  # that tensors without data stand for, empty for the CPU; ``None`` where tensors have data
    fake_ranks: int  # as one of how many ranks the script trains on such tensors; 0 for a script as it is
    replaces_checkpointing: bool  # the checkpoints that the script makes itself are to be switched off
    is_surveyed: bool  # an earlier process of the script has told what its steps take
    is_exact: bool  # nothing is to be offered that changes the order of a sum
    longest: int | None  # the length that trials are to have, in tokens; ``None`` for that of the script's batches
    is_trial: bool  # the process is there to be measured: its training leads nowhere, and may get other batches

    def on_session(self, detect: Callable[[], Detection]) -> Config:
        """Return the config to train with: a training session exists, and no step has run in it."""

    def on_forward(self, batch: int, check: Callable[..., GradientCheck]) -> None:
        """Note that the model is about to be called for training with this many samples.

        ``check`` compares a config's gradients on this very batch with those without recompute, and looks at a whole
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
    """A setting besides recompute, for which the script is started again with other environment variables."""

    name: str
    variables: dict[str, str]
    effect: str
    needs: str = ""  # systems on which it does anything, in words; empty for all
    why_not: Callable[[Config, Detection], str] = lambda _config, _detection: ""
    """Tells why it cannot be tried on a config of a detection, in words; empty where it can."""
    plans: Callable[[Detection], Sequence[Plan]] | None = None
    """Plans that exist under it, by what a worker detected under its variables; ``None`` if it changes none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """Environment variables that make an unmodified script train with a config, and the files that they name."""

    variables: dict[str, str]
    files: dict[Path, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)  # further advice to whoever trains, by its subject


class ControllerBackend(Protocol):
    """A training system as the controller sees it: a module that imports no part of the system.

    It may have besides, as tuples: ``CACHE_VARIABLES``, which name the folder in which it keeps what it has compiled;
    ``LOG_VARIABLES``, which say how much the system logs; ``CARDS``, whose kernels and allocator fake tensors can have,
    beside ``find_card``, which returns the name of the one that a user means.
    """

    NAME: str  # on the command line
    VARIABLES: tuple[str, ...]  # all environment variables that decide about recompute
    TRIAL_VARIABLES: Mapping[str, str]  # variables of trials
    KNOBS: Sequence[Knob]  # what ``tune --knobs`` tries, in this order
    HINTS: Sequence[Knob]  # what users may try themselves
    REPAIR: str  # a module that builds what can be built here, when it is run; empty where there is nothing to build
    READ_BY: str  # scripts in which the variables have an effect without ``run``: "a script that ..."
    USUAL_PRESET: str  # what people switch on by hand, gradient checkpointing of all blocks; empty where nobody does
    USED_BY: str  # module by whose import a script tells that it uses the system; empty for that of all other scripts
    IMPORT_HOOK: str
    """Function that a process which trains with an emission calls by itself when it imports a module: ``before MODULE
    FUNCTION WHAT IS MISSED``, with the function as ``package.module:function``, and what happens in a process that
    cannot call it, in words; or ``after ...``, for when the module has been imported."""
    memory_model: Callable[[Space, StepProfiles], MemoryModel] | None
    """Makes a memory model from profiled steps; ``None`` of a system that profiles none, and has :meth:`memory_of`."""

    def render(
        self,
        config: Config,
        *,
        knobs: Collection[str] = (),
        versions: Mapping[str, str],
        folder: Path,
        lengths: Lengths | None = None,
    ) -> Emission:
        """Render the config and the knobs of these names for these versions; files go into the folder.

        With ``lengths`` batches of other lengths get configs of their own.

        ``SetupError``: these versions read no config of this form. ``UsageError``: it cannot be written for them, or
        there is no knob of one of these names.
        """

    def script(self, config: Config, versions: Mapping[str, str]) -> str:
        """Return the source of a file whose ``apply_recompute(model)`` switches the config on without this package.

        A ``UsageError`` says that there is no such form for the config.
        """

    def unmeasured(self, config: Config, versions: Mapping[str, str]) -> str:
        """Return a file that switches on a config which nobody measured, with that word in it.

        A ``UsageError`` says that the training system reads no file.
        """

    def planned(self, environment: Mapping[str, str]) -> Config | None:
        """Return the unmeasured config that these variables switch on; ``None`` where they switch on none."""

    def offer(self, detection: Detection, environment: Mapping[str, str], dims: Mapping[str, int]) -> Offer:
        """Return the offer at these dimensions, and the plans that these variables switch on."""

    def takes_turns(self, detection: Detection) -> bool:
        """Tell whether a swap takes no time beside a step, so that configs can be timed in turns, a step of each."""

    def needs_of(self, detection: Detection) -> Callable[[Config], frozenset[str]]:
        """Tell the names of what takes time to make before a config trains, and is made once for all that need it."""

    def memory_of(self, detection: Detection) -> MemoryModel | None:
        """Return a memory model of every config from a detection alone; ``None`` where it tells nothing."""

    def memory_by_length(self, detection: Detection) -> Mapping[int, MemoryModel] | None:
        """Return memory models of shorter batches than the one that was detected, by their lengths in tokens.

        ``None`` of a system whose batches cannot be given another length.
        """

    def peaks_of(self, detection: Detection) -> PeakForecaster | None:
        """Return peaks to begin a search with, where nothing is a model of all memory; ``None`` if nothing is known."""

    def rough_memory_of(self, detection: Detection) -> MemoryModel | None:
        """Return a rough memory model for a search in the steps of a training, where :meth:`memory_of` tells nothing.

        Real steps under safe configs tell the rest.

        Raises:
            SetupError: no config may be tried there; the message has the reason and a way out.
        """


class LiveMeter(Protocol):
    """Counts the bytes of the tensors that are alive, through one step."""

    def start(self) -> None:
        """Begin a step, which takes longer than others from now on."""

    def stop(self) -> int:
        """End the step, and return the most bytes that it had alive beyond those alive at its start."""

    def held_bytes(self, measured_bytes: int) -> int:
        """Return the bytes that a process with this config alone would hold between two steps."""


class WorkerBackend(Protocol):
    """A training system inside the user's process, which has nothing of what it does not override."""

    def install(self, listener: Listener) -> None:
        """Hook into the training system before the user's script runs; a ``SetupError`` says what of it is missing."""

    def switch(self, config: Config, *, profiles: bool = False) -> None:
        """Train with another config from the next step on, between two steps; profile them until the next switch."""

    def give_batch(self, batch: int) -> bool:
        """Have the model receive so many samples of each batch from now on; ``False`` where that cannot be."""
        del batch
        return False

    def give_length(self, length: int) -> None:
        """Have trials receive batches of this length, in tokens, from the next one that is drawn on."""
        del length

    def follow_lengths(self, lengths: Lengths | None) -> None:
        """Have each batch train with the config of its length from the next switch on; ``None`` ends that."""
        del lengths

    def step_beside(self, config: Config) -> Any:
        """Run a step of the batch at hand beside the training with a config, at the length of trials; return its loss.

        The training goes on as if nothing had been run. It is asked for in a forward, before the model is called.

        Raises:
            RuntimeError: the training system cannot give batches another length.
        """
        raise RuntimeError(f"no step can be run beside this training with {config}")

    def lacking_memory(self, config: Config) -> str | None:
        """Run the step at hand with a config beside the training, and say what ran out of memory; empty where it fits.

        It is asked for in a forward, before the model is called. ``None`` where nothing had to be run, or can be.
        """
        del config
        return None

    def live_meter(self) -> LiveMeter | None:
        """Return a meter of live tensors; ``None`` where the device's allocator, or nobody, counts them."""
        return None

    def take_profile(self) -> StepProfile | None:
        """Return the last step of those profiled, once after a switch; ``None`` of a system that profiles none."""
        return None

    def take_compile_seconds(self) -> float:
        """Return the seconds of compiling since the last call; steps of that time tell nothing of a config."""
        return 0.0

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a training forward waits for its backward; no config can be switched then."""

    def end_step(self) -> tuple[str, ...]:
        """Note that a step has ended; return what the script has done so far that recompute does not bear."""

    def wrong_recompute(self) -> str:
        """Return in what the steps with this config differed from those without recompute; empty where in nothing."""
        return ""

    def follow_samples(self) -> bool:
        """Follow what models return for each sample up to the next loss; ``False`` where nothing can be followed."""
        return False

    def mixes_samples(self, loss: Any) -> bool:
        """Tell whether the loss at the end of what was followed is one of the whole batch."""
        del loss
        return False

    def why_nothing_trained(self) -> str:
        """Return why a script that ends or goes on may never have come to training, and what to do, in sentences."""

    def classify(self, error: BaseException) -> tuple[Outcome, str]:
        """Classify the exception that ended the script, with a sentence about it."""
