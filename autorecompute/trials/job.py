"""The job that is trained, and the steps that a trial takes of it."""

from __future__ import annotations

import math
import shlex
import sys
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Self

from autorecompute.backends import registry
from autorecompute.backends.registry import AUTO
from autorecompute.errors import UsageError
from autorecompute.files import is_file, shown
from autorecompute.plans.savings import BATCH
from autorecompute.worker.protocol import MODULE_FLAG, Order

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from autorecompute.plans import Config
    from autorecompute.training_job import Detection


MOST_MIXED = 10  # lengths, in each of which a step is taken
READ_AHEAD = 2  # so many batches a loader may have drawn when it is told another length


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Length of a trial.

    Attributes:
        warmup: Steps before the timed ones; 0 for a config that is timed in turns with others.
        steps: Timed steps; in a trial the most of them.
        profiles: True if the last step is profiled, which takes time of its own.
        batch: Samples a forward instead of the target batch, on a bench that can change it.
        looks_at_loss: True if it is to be told whether the loss is one of the whole batch.
        length: Tokens of a sample that models receive, instead of the longest.
        mixed: Lengths that a process which is watched as a whole goes through before.
    """

    warmup: int = 2
    steps: int = 2
    profiles: bool = False
    batch: int | None = None
    looks_at_loss: bool = False
    length: int | None = None
    mixed: tuple[int, ...] = ()

    @property
    def watched_steps(self) -> int:
        """Return the steps of a process that is watched from its first one on, which is timed in no case."""
        return 1 + self._untimed_steps + self.steps

    @property
    def _untimed_steps(self) -> int:
        return self.warmup + (len(self.mixed) + READ_AHEAD if self.mixed else 0)

    def order(self, config: Config, target: int | None = None) -> Order:
        """Return the worker's order, with the target batch where the job has none."""
        batch = self.batch or target
        return Order(
            config=config,
            warmup=self._untimed_steps,
            steps=self.steps,
            profiles=self.profiles,
            batch=batch,
            looks_at_loss=self.looks_at_loss,
            length=self.length,
            mixed=self.mixed,
        )


def mixed_lengths(known: Collection[int], longest: int) -> tuple[int, ...]:
    """Return lengths between none and the longest, in turns, at multiples of what all lengths known to run share."""
    share = math.gcd(longest, *known)
    step = share * math.ceil(longest / (share * MOST_MIXED))
    lengths = range(step, longest, step)
    return (*lengths[::-2], *lengths[-2::-2])


def known_loader(detection: Detection | None, *, is_watched: bool) -> str:
    """Return the DataLoader that is told the batch before the first step; empty where that has the script's own.

    A worker that exports a model has to begin as the first one did, with the script's own batch: what the export leaves
    behind depends on it, and peaks would not be those of the same process. One that is watched as a whole does not.
    """
    if detection is None:
        return ""
    is_plain = registry.plain_name() == registry.backend_of(detection.versions).NAME
    return detection.loader if is_plain or is_watched else ""


def begins_too_large(detection: Detection) -> bool:
    """Tell whether a card's first step has more samples than the target, and may not fit where the target does."""
    is_larger = detection.dims.get(BATCH, 0) > detection.batch
    return detection.device.kind == "cuda" and bool(known_loader(detection, is_watched=False)) and is_larger


PLACEHOLDER, ACCUMULATION = "{batch}", "{accumulation}"
"""Stand in a script's arguments for the samples of a forward, and for the passes of a step."""


def fill(word: str, values: Mapping[str, str]) -> str:
    """Return a word of a command with its placeholders filled."""
    for placeholder, value in values.items():
        word = word.replace(placeholder, value)
    return word


NOTEBOOK = ".ipynb"
PYTHON = "python"
PYTHONS = {PYTHON, "python3"}
SHELLS = (b"sh", b"bash", b"dash", b"zsh")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A script with its arguments.

    Attributes:
        script: The script's path, or the name of a module, as in ``python -m package.train``.
        is_typed: True if there is no script: the training is typed into a notebook or an interpreter, and is only
            called by this name.
        arguments: Its arguments; ``{batch}`` in them stands for the batch.
        batch_flag: A flag of the script that takes the batch.
        accumulation_flag: A flag of the script that takes the number of passes of a step.
        global_batch: Samples of a step, over all its passes and ranks; ``None`` for as many as the script makes.
        world: Number of ranks that share them.
        launcher: The words before ``-m MODULE`` that start it, ``torchrun --nproc-per-node 1`` for instance; empty for
            this interpreter.
        backend: Name of the training system; ``auto`` for the one that the script uses.
        fakes: True if tensors have no data, and only what can be recomputed is of interest.
        card: The card that they stand for; empty for the CPU.
        ranks: Number of ranks as one of which it trains on them, without the others; 0 for the script as it is.
        replaces_checkpointing: True if the checkpoints that the script makes itself are switched off.
        is_exact: True if nothing is offered that changes the order of a sum.
        longest: Tokens of the longest sample that the training will see; ``None`` where the script's batches tell.

    Raises:
        UsageError: there is no such script, it is no Python, or the launcher cannot be read.
    """

    script: Path
    is_module: bool = False
    is_typed: bool = False
    arguments: tuple[str, ...] = ()
    batch_flag: str | None = None
    accumulation_flag: str | None = None
    global_batch: int | None = None
    world: int = 1
    launcher: str = ""
    backend: str = AUTO
    fakes: bool = False
    card: str = ""
    ranks: int = 0
    replaces_checkpointing: bool = False
    is_exact: bool = False
    longest: int | None = None

    def __post_init__(self) -> None:
        if self.is_module:
            _require_module_name(str(self.script))
        elif not self.is_typed:
            _require_python(self.script)
        try:
            shlex.split(self.launcher)
        except ValueError as error:
            raise UsageError(
                f"--launcher {shown(self.launcher)} cannot be read: {error}. Quote it as a shell would."
            ) from error

    @property
    def takes_batch(self) -> bool:
        """Tell whether the batch is among the arguments; if not, the DataLoader is told."""
        return self.batch_flag is not None or any(PLACEHOLDER in argument for argument in self.arguments)

    def script_arguments(self, batch: int | str | None) -> list[str]:
        """Return the script's arguments at this batch.

        Raises:
            UsageError: the arguments want a batch and none is given.
        """
        if batch is None and self.takes_batch:
            raise UsageError("The script's arguments take a batch and none is given. Add --target-batch N.")
        passes = self.passes(batch) if isinstance(batch, int) else None
        values = {PLACEHOLDER: str(batch)} | ({} if passes is None else {ACCUMULATION: str(passes)})
        flags = [(self.batch_flag, PLACEHOLDER), (self.accumulation_flag, ACCUMULATION)]
        words = [*self.arguments, *chain.from_iterable(pair for pair in flags if pair[0] is not None)]
        return [fill(word, values) for word in words if word is not None]

    def passes(self, batch: int) -> int | None:
        """Return the passes of a step in which a forward has so many samples; ``None`` where the script decides."""
        return None if self.global_batch is None else max(self.global_batch // (self.world * batch), 1)

    def step_samples(self, batch: int | None) -> int | None:
        """Return the samples of a whole step, over all ranks, at this batch; ``None`` where that is the script's."""
        divides = batch is not None and self.global_batch is not None and self.global_batch % batch == 0
        return self.global_batch if divides else None

    def worker_command(self, batch: int | None) -> list[str]:
        """Return the command that runs the script inside a worker."""
        return self._command("autorecompute.worker", batch)

    def training_command(self) -> list[str]:
        """Return the command that runs the script to its own end, measured while it trains."""
        return self._command("autorecompute.worker.training", None)

    def _command(self, module: str, batch: int | None) -> list[str]:
        start = shlex.split(self.launcher) or [sys.executable]
        return [*start, "-m", module, *self._words, *self.script_arguments(batch)]

    @classmethod
    def of_command(cls, command: Sequence[str], script_at: int) -> Self:
        """Return the job of a command: what :meth:`plain_command` gives, and :attr:`script_at`.

        Raises:
            UsageError: there is no such script, it is no Python, or the launcher cannot be read.
        """
        is_module = command[script_at - 1] == MODULE_FLAG
        start = list(command[: script_at - is_module])
        # python alone is the interpreter that this runs in, as when it was tuned.
        is_own = len(start) == 1 and start[0] in PYTHONS
        return cls(
            script=Path(command[script_at]),
            is_module=is_module,
            arguments=tuple(command[script_at + 1 :]),
            launcher="" if is_own else shlex.join(start),
        )

    def plain_command(self, batch: int | str | None) -> list[str]:
        """Return the command a user would type, for people to read."""
        return [*self._start, *self._words, *self.script_arguments(batch)]

    def command_of_any_batch(self) -> list[str]:
        """Return the same with the place for the batch left open."""
        return self.plain_command(PLACEHOLDER)

    @property
    def script_at(self) -> int:
        """Place of the script, or of the module's name, in :meth:`plain_command`; 0 where there is none."""
        return 0 if self.is_typed else len(self._start) + self.is_module

    @property
    def _start(self) -> list[str]:
        return shlex.split(self.launcher) or [PYTHON]

    @property
    def _words(self) -> list[str]:
        if self.is_typed:
            return []
        return [MODULE_FLAG, str(self.script)] if self.is_module else [str(self.script)]


def _require_module_name(name: str) -> None:
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{shown(name)} is no name of a module. Write it as for python -m: -m package.train")


def _require_python(script: Path) -> None:
    if not is_file(script):
        raise UsageError(f"There is no script {shown(script)}. Give the path of the training script.")
    if script.suffix == NOTEBOOK:
        raise UsageError(
            f"{shown(script)} is a notebook. Make a script of it with 'jupyter nbconvert --to script', and tune that."
        )
    if _is_shell_script(script):
        raise UsageError(
            f"{shown(script)} is a shell script. Give the Python script that it starts, what it starts that with as "
            "--launcher, and the arguments after --."
        )


def _is_shell_script(script: Path) -> bool:
    try:
        with script.open("rb") as file:
            first = file.readline(200)
    except OSError:
        return False
    return first.startswith(b"#!") and first.split()[-1].rpartition(b"/")[2] in SHELLS
